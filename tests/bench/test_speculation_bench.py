"""`labcore spec` counts what the records say, on the lab model; its times are there and prove nothing."""

from __future__ import annotations

import json

import pytest

from labcore.bench.speculation import PROMPTS, Counts, bench_speculation, generate, prompts_of
from labcore.cli.main import main
from labcore.core.config import SpeculativeConfig
from labcore.core.trace import ScheduledRecord, StepRecord
from labcore.model.weights import load_model

DRAFT = SpeculativeConfig(method="draft", draft_layers=3, adaptive=False)


def record(step: int, num_draft: int, num_accepted: int, sampled: tuple[int, ...]) -> StepRecord:
    share = ScheduledRecord("a", 1 + num_draft, 0, 0, sampled, (), "running", "", num_draft, num_accepted)
    return StepRecord(step=step, scheduled=(share,), waiting=0, running=1, free_blocks=0, cached_blocks=0, used_blocks=0)


def test_guesses_are_counted_place_by_place() -> None:
    """Judged is what stands behind right guesses only; a chunk that brings no token is no pass."""
    records = [
        record(0, 0, 0, ()), record(1, 0, 0, (1,)), record(2, 3, 0, (2,)), record(3, 3, 2, (3, 4, 5)),
        record(4, 3, 3, (1, 1, 1, 1)), record(5, 1, 1, (6, 7)),
    ]  # fmt: skip
    counts = Counts.of(records)
    assert counts == Counts(num_passes=5, num_tokens=11, judged=(4, 2, 2), right=(3, 2, 1))
    assert counts.acceptance == 6 / 8 and counts.tokens_per_pass == 11 / 5
    assert Counts.of([]) == Counts(0, 0, (), ()) and Counts.of([]).acceptance == Counts.of([]).tokens_per_pass == 0.0


def test_there_are_prompts_of_each_kind_and_they_fit() -> None:
    assert {kind: len(texts) for kind, texts in PROMPTS.items()} == {"copy": 5, "summary": 3, "story": 3, "code": 2}
    texts = [text for kind in PROMPTS.values() for text in kind]
    assert len(set(texts)) == len(texts)
    assert max(map(len, prompts_of(load_model("smollm2"), texts))) < 128


def test_what_is_counted_on_the_lab_model() -> None:
    model = load_model("lab")
    prompts = prompts_of(model, ["hello"])
    plain, before = generate(model, prompts, SpeculativeConfig(), max_tokens=24)
    answers, after = generate(model, prompts, DRAFT, max_tokens=24)
    counts = Counts.of(after)
    assert answers == plain and counts.num_tokens == len(plain[0]) and Counts.of(before).tokens_per_pass == 1
    assert 0 < counts.acceptance < 1 and counts.num_passes < Counts.of(before).num_passes


def test_the_document_has_a_row_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labcore.bench.speculation.PROMPTS", {"one": ["hello"], "two": ["good", "morning"]})
    found = bench_speculation("lab", DRAFT, rounds=1, max_tokens=8, threads=1)
    assert list(found["kinds"]) == ["one", "two"] and found["speculative"]["draft_layers"] == 3
    for kind in found["kinds"].values():
        assert kind["same_answers"] and kind["speed_up"] > 0 and kind["tokens_per_pass"] >= 1
        assert set(kind["run"]["timings"]) == {"plain", "speculative"}


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("labcore.bench.speculation.PROMPTS", {"one": ["hello"]})
    argv = ["spec", "--model", "lab", "--method", "draft", "--k", "3", "--always", "--rounds", "1", "--max-tokens", "8"]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "guess 3" in shown and "tokens a pass" in shown and "yes" in shown
    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["speculative"]["num_draft_tokens"] == 3
    for wrong in (["--k", "0"], ["--law", "--answers", "5"], ["--method", "magic"], ["--rounds", "0"], ["--threads", "0"]):
        assert main(["spec", "--model", "lab", *wrong]) == 2
    assert main(["spec", "--model", "no-such-model"]) == 2


def test_the_table_of_the_law_tells_right_from_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "--law", "--answers", "3000", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["way"] for row in rows].count("right") == 5 and len(rows) == 9
    for row in rows:
        assert (row["pairs"]["p"] > 1e-3) == (row["first"]["p"] > 1e-3) == row["right"]
    assert main(["spec", "--law", "--answers", "3000"]) == 0
    assert "no such token" in capsys.readouterr().out


def test_goals_are_set_for_the_real_model_and_decide_with_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labcore.bench.speculation.PROMPTS", {"copy": PROMPTS["copy"][2:3], "story": ["Tell a story."]})
    argv = ["spec", "--rounds", "1", "--max-tokens", "24", "--check", "--json"]
    for factor, code in ((0.0, 0), (1e9, 1)):
        for name in ("FASTER", "NO_SLOWER", "TOKENS"):
            monkeypatch.setattr(f"labcore.bench.speculation.{name}", factor)
        assert main(argv) == code
        told = json.loads(capsys.readouterr().out)
        assert [goal["name"] for goal in told["goals"]] == ["copy: speed-up", "story: speed-up", "copy: tokens a pass"]
        assert {goal["met"] for goal in told["goals"]} == {code == 0}
        assert all(kind["same_answers"] for kind in told["kinds"].values())
    assert main([*argv, "--always"]) == 0  # no goals are set for it
    assert json.loads(capsys.readouterr().out)["goals"] == []
