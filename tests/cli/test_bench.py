"""`labcore bench` and `labcore kernels`: one document, tables for people, an exit code for `--check`, reasons for absence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labcore.bench import kernels, model, quality, sampling, scheduling
from labcore.bench.ceilings import Ceilings
from labcore.bench.harness import timed
from labcore.bench.peers import compare
from labcore.bench.workload import Workload
from labcore.cli.main import main

CEILINGS = Ceilings(threads=1, read=10e9, copy=8e9, multiply_adds=100e9, int8_dots=None, measured_by="nobody")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny sizes and ceilings that are given: the commands are looked at, not the times."""
    for module in (kernels, model, compare):
        monkeypatch.setattr(module, "measure_ceilings", lambda threads: CEILINGS)
    monkeypatch.setattr(kernels, "SIZES", {"small": (32, 64), "large": (48, 128)})
    monkeypatch.setattr(kernels, "timed", lambda call, seconds=0.0: timed(call, seconds=0.0))
    tiny = (Workload(batch=1, prompt_tokens=8, new_tokens=1), Workload(batch=2, prompt_tokens=4, new_tokens=3))
    monkeypatch.setattr(model.bench_model, "__kwdefaults__", {**model.bench_model.__kwdefaults__, "workloads": tiny})


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out))


def test_kernels_prints_tables_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "roofline.png"
    assert main(["kernels", "--rounds", "1", "--threads", "1", "--plot", str(picture)]) == 0
    out = capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    for text in ("paged_attention", "reference", "numpy out=", "float32 100 GFLOP/s", "time over torch's", "A call from Python"):
        assert text in out
    assert all(len(line) <= 160 for line in out.splitlines())


def test_kernels_of_one_operator_as_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "--operator", "rope", "--rounds", "1", "--threads", "1", "--json"]) == 0
    found = document(capsys)
    assert {row["operator"] for row in found["rows"]} == {"rope"} and found["ceilings"]["read"] == 10e9
    assert main(["kernels", "--operator", "softmax", "--rounds", "1", "--plot", "/no/such/folder/x.png"]) == 2


def test_check_exits_with_the_goals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kernels, "TIMES_FLOOR", float("inf"))
    for bound, code in ((float("inf"), 0), (0.0, 1)):
        monkeypatch.setattr(kernels, "GOALS", (("softmax", "numpy", bound),))
        assert main(["kernels", "--operator", "softmax", "--rounds", "1", "--check", "--json"]) == code
        assert document(capsys)["exit_code"] == code


def test_model_prints_a_row_for_each_workload_beside_its_floor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "model", "lab", "--rounds", "1", "--threads", "1", "--json"]) == 0
    found = document(capsys)
    assert [row["name"] for row in found["rows"]] == ["prefill 8", "decode, batch 2"]
    for row in found["rows"]:
        assert row["floor_seconds"] >= row["bytes"] / found["ceilings"]["read"] * 0.999
        assert row["share_of_floor"] == pytest.approx(row["floor_seconds"] / row["seconds"])
    assert found["loading"]["seconds"] > 0 and found["loading"]["file_bytes"] is None
    assert main(["bench", "model", "lab", "--rounds", "1"]) == 0
    assert "of the floor" in capsys.readouterr().out


def test_a_model_with_experts_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "model", "lab-moe", "--rounds", "1"]) == 2
    assert "lab-moe has experts: what a step reads follows its routing" in capsys.readouterr().err


def test_peers_that_are_absent_are_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "lab", "-o", str(tmp_path / "lab.gguf")]) == 0
    capsys.readouterr()
    absent = compare.Contender(name="llama.cpp", module="no_such_module", model="gguf")
    monkeypatch.setattr(compare.bench_peers, "__kwdefaults__", {**compare.bench_peers.__kwdefaults__, "contenders": (absent,)})
    assert main(["bench", "peers", str(tmp_path / "lab.gguf"), "--rounds", "1", "--check"]) == 1
    out = capsys.readouterr().out
    assert "llama.cpp is absent: ModuleNotFoundError" in out and "not measured" in out
    assert main(["bench", "peers", "lab"]) == 2
    assert "no GGUF file" in capsys.readouterr().err


def test_quality_says_how_far_the_distributions_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    few = {**quality.bench_quality.__kwdefaults__, "num_tokens": 20}
    monkeypatch.setattr(quality.bench_quality, "__kwdefaults__", few)
    assert main(["bench", "quality", "lab", "--json"]) == 0
    found = document(capsys)
    assert found["engines"]["labcore"] == {
        "mean_kl": 0.0,
        "max_kl": 0.0,
        "max_logit_error": 0.0,
        "same_best": 1.0,
    }  # its file is in float32
    assert "llama.cpp" in found["absent"] and found["tokens"] == 20
    monkeypatch.setattr(quality.bench_quality, "__kwdefaults__", {**few, "num_tokens": 10**6})
    assert main(["bench", "quality", "lab"]) == 2
    assert "expected 1000000" in capsys.readouterr().err


def test_scheduling_tells_a_step_and_growth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"RUNNING": (4, 64, 256), "BATCHES": (2,), "POOLS": (600, 700), "CACHED_TOKENS": (1024, 2048)}.items():
        monkeypatch.setattr(scheduling, name, value)
    monkeypatch.setattr(scheduling, "STEPS", 4)
    assert main(["bench", "scheduling", "lab", "--rounds", "1", "--threads", "1", "--json"]) == 0
    told = document(capsys)
    assert told["overhead"].keys() == {"4", "64", "256"} and told["share"].keys() == {"2"}
    assert {what: set(costs) for what, costs in told["growth"].items()} == {
        "allocator": {"600", "700"}, "radix": {"1024", "2048"}, "hash": {"1024", "2048"},
    }  # fmt: skip
    assert all(goal["value"] > 0 for goal in told["goals"]) and len(told["goals"]) == 6
    assert main(["bench", "scheduling", "lab", "--rounds", "1", "--threads", "1"]) == 0
    assert "Schedule and update" in capsys.readouterr().out


def test_sampling_stands_beside_the_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sampling, "BATCHES", (1, 3))
    monkeypatch.setattr(sampling, "CONTEXT", 16)
    for bound, code in ((float("inf"), 0), (0.0, 1)):
        monkeypatch.setattr(sampling, "LIMITS", dict.fromkeys(sampling.RULES, bound))
        assert main(["bench", "sampling", "lab", "--rounds", "1", "--threads", "1", "--check", "--json"]) == code
        told = document(capsys)
        assert told["exit_code"] == code and len(told["goals"]) == 6 and told["stamp"]["backend"].startswith("native")
    for found in told["batches"].values():
        assert found["timings"].keys() == {"decode step", "greedy", "temperature", "all filters"}
        assert all(share > 0 for share in found["shares"].values()) and found["shares"].keys() == set(sampling.RULES)
    assert main(["bench", "sampling", "lab", "--rounds", "1", "--threads", "1"]) == 0
    assert "Tokens drawn" in capsys.readouterr().out
