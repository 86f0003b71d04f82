"""Peers in processes of their own: what they say, how they fail, what is made of their times."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from labcore.bench import quality
from labcore.bench.peers import compare
from labcore.bench.peers.compare import CONTENDERS, GOALS, OURS, Contender, bench_peers, idle_cores, model_files
from labcore.bench.peers.process import PeerFailed, PeerProcess
from labcore.bench.workload import DECODES, PREFILL, Workload
from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.lab import lab_checkpoint
from labcore.loaders.load import load_checkpoint

STAND_IN = "stand_in_engine"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the stand-in beside this file."""
    monkeypatch.syspath_prepend(Path(__file__).parent)


def test_a_peer_says_its_versions_and_its_seconds_whatever_its_libraries_print() -> None:
    with PeerProcess(STAND_IN, "model-3", threads=1) as peer:
        assert peer.versions == {"stand-in": "1.0"} and peer.load_seconds >= 0
        assert peer.seconds(PREFILL, seed=0) == 3.0
        assert peer.seconds(DECODES[0], seed=1) == 0.3


def test_a_peer_gives_its_logits() -> None:
    with PeerProcess(STAND_IN, "model-3", threads=1) as peer:
        logits = peer.logits([0, 1, 6])
    assert logits.dtype == np.float32 and np.array_equal(logits, np.eye(4, dtype=np.float32)[[0, 1, 2]])


def test_a_peer_that_is_missing_or_cannot_load_says_why() -> None:
    with pytest.raises(PeerFailed, match="No module named 'no_such_engine'"):
        PeerProcess("no_such_engine", "model", threads=1)
    with pytest.raises(PeerFailed, match=r"^RuntimeError: no such model$"):
        PeerProcess(STAND_IN, "broken-1", threads=1)


def test_a_peer_that_fails_at_a_request_goes_on_and_one_that_dies_is_told() -> None:
    with PeerProcess(STAND_IN, "model-4", threads=1) as peer:
        with pytest.raises(PeerFailed, match="eight are too many"):
            peer.seconds(DECODES[2], seed=0)
        assert peer.seconds(PREFILL, seed=0) == 4.0
    with PeerProcess(STAND_IN, "model-2", threads=1) as peer:
        with pytest.raises(PeerFailed, match="ended with code 3"):
            peer.seconds(DECODES[4], seed=0)
        with pytest.raises(PeerFailed, match="ended with code 3"):
            peer.seconds(PREFILL, seed=0)


def test_a_waiting_peer_burns_no_core() -> None:
    with PeerProcess(STAND_IN, "model-1", threads=1) as peer:
        assert idle_cores({"a": peer})["a"] < 0.05
    assert idle_cores({}) == {}


def test_the_comparison_is_made_of_what_the_peers_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours takes 1, one peer 2, another 4; one is missing; failures of a peer stand beside what it could do."""
    seconds = {"ours": "1", "twice": "2", "four": "4"}
    gguf = tmp_path / "model.gguf"
    with model_files(lab_checkpoint(), gguf) as path:
        os.replace(path("f32 gguf"), gguf)
    monkeypatch.setattr(compare, "HERE", "")
    monkeypatch.setattr(compare, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(compare, "F32", "-1")
    monkeypatch.setattr(compare, "QUIET", float("inf"))  # whatever else runs here
    made = PeerProcess.__init__

    def start(self: PeerProcess, module: str, model: str, threads: int) -> None:
        made(self, STAND_IN if module in seconds else module, f"model-{seconds.get(module, '1')}", threads)

    monkeypatch.setattr(PeerProcess, "__init__", start)
    contenders = [
        Contender(name=OURS, module="ours", model="gguf"),
        Contender(name="llama.cpp", module="twice", model="gguf"),
        Contender(name="OpenVINO", module="four", model="gguf"),
        Contender(name="transformers", module="no_such_engine", model="gguf"),
    ]
    said: list[str] = []
    document = bench_peers(str(gguf), rounds=2, threads=2, contenders=contenders, say=said.append)
    assert document["ratios"]["prefill 512"] == {"llama.cpp": 2.0, "OpenVINO": 4.0}
    assert document["results"]["prefill 512"]["tokens_per_second"] == {OURS: 512.0, "llama.cpp": 256.0, "OpenVINO": 128.0}
    assert document["results"]["decode, batch 4"]["tokens_per_second"][OURS] == pytest.approx(40.0)
    assert document["ratios"]["decode, batch 8"] == {"llama.cpp": 2.0}
    assert document["ratios"]["decode, batch 32"] == {"OpenVINO": 4.0}
    assert set(document["absent"]) == {"transformers", "OpenVINO, decode, batch 8", "llama.cpp, decode, batch 32"}
    goals = {goal["name"]: goal for goal in document["goals"]}
    assert goals["prefill 512: times as fast as llama.cpp"] | {"goal": ""} == {
        "name": "prefill 512: times as fast as llama.cpp", "value": 2.0, "goal": "", "met": False, "why": "",
    }  # fmt: skip
    assert goals["decode, batch 8: times as fast as OpenVINO"]["why"].endswith("eight are too many for me")
    assert "no_such_engine" in goals["decode, batch 1: times as fast as transformers"]["why"]
    assert (
        goals["decode, batch 1: times as fast as llama.cpp"]["met"]
        and not goals["decode, batch 8: times as fast as OpenVINO"]["met"]
    )
    assert any("transformers is absent" in line for line in said)


@pytest.mark.parametrize(("foreign", "why"), [(0.97, "taken while 0.97 cores were busy for others"), (0.01, ""), (None, "")])
def test_a_goal_of_a_run_beside_others_says_so(foreign: float | None, why: str) -> None:
    workload, peer, _ = GOALS[0]
    result = {"workload": workload, "ratios": {peer: 9.0}, "foreign_cores": foreign, "stolen_cores": None, "timings": {}}
    goals = {goal.name: goal for goal in compare._goals({workload: {peer: 9.0}}, {workload: result}, {}, floor=1.0)}
    assert (goals[f"{workload}: times as fast as {peer}"].value, goals[f"{workload}: times as fast as {peer}"].why) == (9.0, why)


def test_every_goal_names_a_workload_and_a_contender_that_there_are() -> None:
    by_name = {contender.name: contender for contender in CONTENDERS}
    for workload, peer, bound in GOALS:
        assert workload in {each.name for each in by_name[peer].workloads} and bound >= 1
    for contender in CONTENDERS:
        assert importlib.util.find_spec("labcore.bench.peers." + contender.module) and contender.against in by_name


def test_only_a_gguf_file_is_compared(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="no GGUF file"):
        bench_peers(str(tmp_path))


def test_peers_get_the_same_weights_in_their_own_form(tmp_path: Path) -> None:
    checkpoint = lab_checkpoint()
    with model_files(checkpoint, tmp_path / "model.gguf") as path:
        assert (path("gguf"), path("f32")) == (str(tmp_path / "model.gguf"), str(tmp_path / "model.gguf#f32"))
        for form in ("f32 gguf", "folder"):
            other = load_checkpoint(path(form))
            assert other.tensors.keys() == checkpoint.tensors.keys()
            assert all(np.array_equal(other.tensors[name], checkpoint.tensors[name]) for name in checkpoint.tensors)


@pytest.mark.parametrize("workload", [PREFILL, Workload(batch=2, prompt_tokens=3, new_tokens=3)], ids=lambda w: w.name)
@pytest.mark.parametrize("module", ["ours", "transformers"])
def test_engines_of_this_environment_run_the_lab_model(tmp_path: Path, module: str, workload: Workload) -> None:
    files = model_files(lab_checkpoint(), tmp_path / "model.gguf")
    with files as path, PeerProcess("labcore.bench.peers." + module, path("folder"), threads=1) as peer:
        assert peer.seconds(workload, seed=0) > 0


@pytest.mark.parametrize("module", ["llama_cpp", "openvino", "ctranslate2"])
def test_other_engines_run_smollm2_or_are_listed_with_the_reason(module: str) -> None:
    """What is not installed here says so; what is installed answers."""
    needs = {"openvino": "openvino_genai"}.get(module, module)
    checkpoint, gguf = load_checkpoint("smollm2"), compare.zoo.model_path("smollm2")
    form = "folder" if module == "ctranslate2" else "gguf"
    if importlib.util.find_spec(needs) is None:
        with pytest.raises(PeerFailed, match="No module named"):
            PeerProcess("labcore.bench.peers." + module, str(gguf), threads=1)
        return
    with model_files(checkpoint, gguf) as path, PeerProcess("labcore.bench.peers." + module, path(form), threads=1) as peer:
        assert peer.seconds(Workload(batch=2, prompt_tokens=4, new_tokens=3), seed=0) > 0


def test_the_text_is_long_enough_for_smollm2() -> None:
    ids = load_checkpoint("smollm2").tokenizer.encode(quality.TEXT.read_text(encoding="utf-8"))
    assert len(ids) >= quality.NUM_TOKENS
