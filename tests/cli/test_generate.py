"""`labcore generate`, `labcore info`: one JSON document on stdout, one line for bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from labcore.cli.main import main


def labcore(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "labcore", *args], capture_output=True, text=True)


def test_paris() -> None:
    run = labcore("generate", "--model", "smollm2", "The capital of France is", "--max-tokens", "8")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("The capital of France is Paris")


def test_json_is_one_document_and_nothing_else() -> None:
    run = labcore("generate", "--model", "lab", "one", "two", "--max-tokens", "4", "--json")
    document = json.loads(run.stdout)
    assert [c["prompt"] for c in document["completions"]] == ["one", "two"]
    assert all(len(c["token_ids"]) <= 4 for c in document["completions"])
    assert document["model"] == "lab"


def test_stream_prints_what_generate_prints(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", "--model", "lab", "hello", "--max-tokens", "30", "--temperature", "1.1", "--seed", "3"]
    assert main(common) == 0
    whole = capsys.readouterr().out
    assert main([*common, "--stream"]) == 0
    assert capsys.readouterr().out == whole


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--max-tokens", "0"], "max_tokens is 0; expected a whole number, 1 or more"),
        (["--temperature", "nan"], "temperature is nan; expected a number from 0"),
        (["--top-p", "0"], "top_p is 0.0; expected a number above 0"),
        (["--backend", "cuda"], "unknown backend 'cuda'; known: native, torch, numpy, reference, triton"),
        (["--threads", "0"], "threads is 0; expected 1 to 1024"),
        (["--model", "gpt-9"], "'gpt-9' is neither a model"),
        (["--stream", "--json"], "--stream prints one prompt's text"),
        (["second prompt", "--stream"], "--stream prints one prompt's text"),
        (["--max-tokens", "many"], "invalid int value: 'many'"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        ([""], "the prompt is empty"),
        (["\udcff"], "a lone surrogate U+DCFF at position 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", *args, *([] if "--model" in args else ["--model", "lab"])]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("labcore: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_prompt_over_the_context_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", "lab", "word " * 2000]) == 2
    assert "exceed the model's context of 2048" in capsys.readouterr().err


def test_a_terminal_that_lacks_characters_gets_question_marks() -> None:
    for extra in ([], ["--stream"]):
        argv = [sys.executable, "-m", "labcore", "generate", "--model", "lab", "é", "--max-tokens", "2", *extra]
        run = subprocess.run(argv, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
        assert run.returncode == 0, run.stderr
        assert run.stdout.startswith(b"?")


def test_info_tells_backends_with_reasons() -> None:
    run = labcore("info", "--json")
    document = json.loads(run.stdout)
    assert {b["name"] for b in document["backends"]} == {"native", "torch", "numpy", "reference", "triton"}
    assert all(b["reason"] for b in document["backends"])
    assert document["packages"]["numpy"]
    assert {"lab", "lab-moe"} <= document["models"].keys()


@pytest.mark.parametrize("how", [[], ["--stream"], ["--json"], ["--chat"]])
def test_a_model_of_nan_is_told(how: list[str], nan_model: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hi", "--model", str(nan_model), *how]) == 1
    assert "labcore: the model failed at this: " in capsys.readouterr().err
