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
