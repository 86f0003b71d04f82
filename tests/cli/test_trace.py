"""`labcore trace`: what is recorded is what ran; bad input writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labcore.cli.main import main
from labcore.engine.llm import LLM
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.trace_file import read_trace

SMALL = ["--num-blocks", "6", "--block-size", "4", "--max-chunk-tokens", "3"]


def test_the_trace_tells_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, prompts = tmp_path / "t.jsonl", ["to be, or not", "hello world"]
    assert main(["trace", *prompts, "--model", "lab", "--max-tokens", "9", "-o", str(file), *SMALL, "--json"]) == 0
    summary, trace = json.loads(capsys.readouterr().out), read_trace(file)
    assert summary["steps"] == len(trace.steps) and summary["preemptions"] > 0
    assert summary["tokens"] == sum(step.num_tokens for step in trace.steps)
    assert trace.config.cache.num_blocks == 6 and trace.config.scheduler.max_chunk_tokens == 3
    answers = LLM("lab").generate(prompts, SamplingParams(max_tokens=9, temperature=0.0))
    for i, answer in enumerate(answers):
        shares = [share for step in trace.steps for share in step.scheduled if share.request_id == f"request-{i}"]
        assert [token for share in shares for token in share.sampled] == answer.token_ids


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["", "-o", "t"], "the prompt is empty"),
        (["x" * 200, "-o", "t", *SMALL], "the pool has 6"),
        (["x", "-o", "t", "--num-blocks", "0"], "num_blocks is 0"),
        (["x", "-o", "no/such/folder/t"], "no/such/folder/t: cannot be written"),
        (["x", "-o", "t\0"], "cannot be written"),
        (["x", "-o", "."], "cannot be written"),
        (["x"], "-o/--output"),
    ],
)
def test_bad_input_is_one_line_and_no_file(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "--model", "lab", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_and_a_model_least_of_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    assert main(["convert", "lab", "-o", str(path)]) == 0
    before = path.read_bytes()
    assert main(["trace", "hi", "--model", str(path), "-o", str(path)]) == 2
    assert "exists; remove it" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_model_of_nan_is_told_and_recorded(nan_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "hi", "--model", str(nan_model), "-o", str(tmp_path / "t"), "--json"]) == 1
    captured = capsys.readouterr()
    assert "labcore: request-0: the model failed at this: " in captured.err
    assert json.loads(captured.out)["errors"].keys() == {"request-0"}
    assert read_trace(tmp_path / "t").steps[-1].scheduled[0].state == "error"


def test_a_file_of_requests_is_traced_printed_and_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, file = tmp_path / "w.jsonl", tmp_path / "t.jsonl"
    asked.write_text(
        '{"prompt": "to be, or not", "n": 2, "max_tokens": 6}\n{"prompt": "to be, or no", "step": 2, "gives_up": 4}\n'
    )
    settings = ["--model", "lab", "--num-blocks", "12", "--block-size", "4", "--prefix-cache", "radix"]
    assert main(["trace", "--workload", str(asked), "-o", str(file), *settings]) == 0
    assert main(["replay", str(file)]) == 0
    told = capsys.readouterr().out
    assert "copied" in told and "hit 4 tokens" in told and "aborted request-1" in told
    assert main(["replay", str(file), "--execute", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(file.read_text().splitlines(keepends=True)[:4]))  # its writer was stopped
    assert main(["replay", str(cut), "--execute"]) == 0 and "3 steps: every decision" in capsys.readouterr().out
    file.write_text(file.read_text().replace('"max_chunk_tokens":null', '"max_chunk_tokens":2'))
    assert main(["replay", str(file), "--execute"]) == 1
    assert "step 0: scheduled was" in capsys.readouterr().out
    assert main(["replay", str(file), "--execute", "--model", "smollm2"]) == 2
    assert "was recorded on 'lab'" in capsys.readouterr().err


def test_prompts_or_a_file_and_not_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for prompts in ([], ["hi", "--workload", "w"]):
        assert main(["trace", *prompts, "-o", str(tmp_path / "t")]) == 2
        assert "expected prompts, or --workload FILE" in capsys.readouterr().err
