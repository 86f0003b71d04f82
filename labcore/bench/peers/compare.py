"""`labcore bench peers`: the same workloads, side by side in one run, with every engine that is installed.

Each engine lives in a process of its own and only one works at a time; the others wait on a pipe. They get the same prompts,
never the same twice, and the same number of threads. A contender that is missing or fails is listed with its reason.
Files that a peer needs in another form are written to a temporary folder from the one model.

    >>> bench_peers("smollm2", rounds=3)["ratios"]["decode, batch 1"]["llama.cpp"]      # doctest: +SKIP
    1.9
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from labcore.bench.ceilings import measure_ceilings
from labcore.bench.harness import QUIET, Goal, alternate
from labcore.bench.peers.process import F32, Q4_0, PeerFailed, PeerProcess
from labcore.bench.stamp import stamp
from labcore.bench.timing import process_seconds
from labcore.bench.workload import DECODES, PREFILL, Costs, Workload
from labcore.core.errors import InvalidCheckpoint
from labcore.core.machine import num_cores
from labcore.loaders import zoo
from labcore.loaders.checkpoint import Checkpoint
from labcore.loaders.gguf_writer import write_gguf
from labcore.loaders.load import load_checkpoint
from labcore.loaders.safetensors_writer import write_safetensors

HERE = "labcore.bench.peers."
SETTLE_SECONDS = 0.3  # threads of the peer before may spin this long after their work
IDLE_SECONDS, TRIES = 1.0, 2
PACKED_WORKLOADS = (PREFILL, *(replace(decode, new_tokens=33) for decode in DECODES))
F32_WORKLOADS = PACKED_WORKLOADS[:2]
OURS = "labcore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """model: "gguf", "q4_0", "f32", "f32 gguf" or "folder", the form it reads; against: whose rows its ratios stand in."""

    name: str
    module: str
    model: str
    workloads: Sequence[Workload] = PACKED_WORKLOADS
    against: str = OURS


CONTENDERS = (
    Contender(name=OURS, module="ours", model="gguf"),
    Contender(name="llama.cpp", module="llama_cpp", model="gguf"),
    Contender(name="llama.cpp Q4_0", module="llama_cpp", model="q4_0", workloads=PACKED_WORKLOADS[:2]),
    Contender(name="OpenVINO", module="openvino", model="gguf"),
    Contender(name="CTranslate2", module="ctranslate2", model="folder"),
    Contender(name="transformers", module="transformers", model="folder"),
    Contender(name=f"{OURS} f32", module="ours", model="f32", workloads=F32_WORKLOADS, against=f"{OURS} f32"),
    Contender(
        name="llama.cpp f32", module="llama_cpp", model="f32 gguf", workloads=F32_WORKLOADS, against=f"{OURS} f32"
    ),
)  # fmt: skip

# (workload, peer, how many times as fast we promise to be)
GOALS = (
    ("decode, batch 1", "llama.cpp", 1.6),
    ("decode, batch 8", "llama.cpp", 4.0),
    ("decode, batch 32", "llama.cpp", 5.0),
    ("prefill 512", "llama.cpp", 6.0),
    ("prefill 512", "llama.cpp Q4_0", 1.5),
    ("decode, batch 8", "OpenVINO", 1.3),
    ("decode, batch 32", "OpenVINO", 1.2),
    ("prefill 512", "OpenVINO", 1.0),
    ("prefill 512", "llama.cpp f32", 1.0),
    ("decode, batch 1", "llama.cpp f32", 1.0),
    ("decode, batch 1", "transformers", 5.0),
    ("decode, batch 8", "transformers", 8.0),
)
SHARE_OF_FLOOR = 0.65


@contextmanager
def model_files(checkpoint: Checkpoint, gguf: Path) -> Iterator[Callable[[str], str]]:
    """The model in the form that is asked for, written when it is first asked for."""
    with tempfile.TemporaryDirectory(prefix="labcore-peers-") as folder:
        dense, hugging_face = Path(folder) / "model.f32.gguf", Path(folder) / "folder"

        def path(form: str) -> str:
            if form == "f32 gguf" and not dense.exists():
                write_gguf(checkpoint, dense, "F32")
            if form == "folder" and not hugging_face.exists():
                write_safetensors(checkpoint, hugging_face, "F32")
            packed = {"gguf": str(gguf), "f32": f"{gguf}{F32}", "q4_0": f"{gguf}{Q4_0}"}
            return {**packed, "f32 gguf": str(dense), "folder": str(hugging_face)}[form]

        yield path


def bench_peers(
    model: str = "smollm2",
    *,
    rounds: int = 5,
    threads: int | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Rates, ratios to ours, versions, reasons of those that are absent, and the goals. say: told what is going on."""
    gguf = zoo.model_path(model) if model in zoo.FILES else Path(model)
    if not gguf.name.endswith(".gguf"):
        raise InvalidCheckpoint(f"{model} is no GGUF file; peers are compared on one, such as smollm2's")
    threads = threads or num_cores()
    checkpoint, ceilings = load_checkpoint(gguf), measure_ceilings(threads)
    absent: dict[str, str] = {}
    peers: dict[str, PeerProcess] = {}
    with ExitStack() as stack:
        path = stack.enter_context(model_files(checkpoint, gguf))
        for contender in contenders:
            say(f"starting {contender.name}")
            try:
                process = PeerProcess(HERE + contender.module, path(contender.model), threads)
                peers[contender.name] = stack.enter_context(process)
            except PeerFailed as error:
                absent[contender.name] = str(error)
                say(f"{contender.name} is absent: {error}")
        idle = idle_cores(peers)
        results = _rounds(contenders, peers, absent, rounds, say)
        versions = {name: {**peer.versions, "load_seconds": peer.load_seconds} for name, peer in peers.items()}
    ratios = _ratios(results)
    costs, ceilings = Costs(checkpoint, "packed"), ceilings.best(measure_ceilings(threads))
    floor = costs.of(PACKED_WORKLOADS[1]).floor(ceilings, costs.packed)
    return {
        "stamp": stamp(),
        "model": checkpoint.config.name,
        "threads": threads,
        "ceilings": ceilings.document(),
        "versions": versions,
        "absent": absent,
        "idle_cores": idle,
        "results": results,
        "ratios": ratios,
        "goals": [goal.document() for goal in _goals(ratios, results, absent, floor)],
    }


def idle_cores(peers: Mapping[str, PeerProcess]) -> dict[str, float]:
    """Cores that each burns while nobody asks it anything."""
    time.sleep(SETTLE_SECONDS)
    before = {name: process_seconds(peer.pid) for name, peer in peers.items()}
    time.sleep(IDLE_SECONDS if peers else 0)
    return {name: (process_seconds(peer.pid) - before[name]) / IDLE_SECONDS for name, peer in peers.items()}


def _rounds(
    contenders: Sequence[Contender],
    peers: Mapping[str, PeerProcess],
    absent: dict[str, str],
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """By group and workload, what the harness found; with tokens per second. A peer that fails goes to `absent`."""
    seeds = count()

    def sample(peer: PeerProcess, workload: Workload) -> Callable[[], list[float]]:
        def once() -> list[float]:
            time.sleep(SETTLE_SECONDS)
            return [peer.seconds(workload, next(seeds))]

        return once

    results: dict[str, dict[str, Any]] = {}
    for workload, against in dict.fromkeys((w, c.against) for c in contenders for w in c.workloads):
        samples = {}
        for contender in contenders:
            if contender.against == against and workload in contender.workloads and contender.name in peers:
                once = sample(peers[contender.name], workload)
                try:
                    once()  # warm, and a first look whether it can
                except PeerFailed as error:
                    absent[f"{contender.name}, {workload.name}"] = str(error)
                    say(f"{contender.name} fails at {workload.name}: {error}")
                else:
                    samples[contender.name] = once
        if samples:
            say(f"{workload.name}: {', '.join(samples)}")
            try:
                comparison = alternate(samples, rounds=rounds, pids={name: peers[name].pid for name in samples}, tries=TRIES)
            except PeerFailed as error:  # it could, and then it could not: the other workloads still count
                absent[workload.name] = str(error)
                say(f"{workload.name} is given up: {error}")
                continue
            rates = {name: workload.tokens / timing.p50 for name, timing in comparison.timings.items()}
            ratios = {name: comparison.ratio(name, against) for name in samples if name != against and against in samples}
            say(", ".join(f"{name} {rate:.0f} tokens/s" for name, rate in rates.items()))
            key = workload.name if against == OURS else f"{workload.name}, f32"
            results[key] = {"tokens_per_second": rates, "ratios": ratios, "workload": workload.name, **comparison.document()}
    return results


def _ratios(results: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By workload and peer, how many times as fast ours is; a peer in float32 meets ours in float32."""
    ratios: dict[str, dict[str, float]] = {}
    for result in results.values():
        ratios.setdefault(result["workload"], {}).update(result["ratios"])
    return ratios


def _goals(
    ratios: Mapping[str, Mapping[str, float]], results: Mapping[str, dict[str, Any]], absent: Mapping[str, str], floor: float
) -> Iterator[Goal]:
    alone = results.get("decode, batch 1", {"timings": {}})["timings"].get(OURS)
    yield Goal(name="decode, batch 1: share of the floor", value=alone and floor / alone["p50"], bound=SHARE_OF_FLOOR)
    for workload, peer, bound in GOALS:
        why = absent.get(peer) or absent.get(f"{peer}, {workload}") or absent.get(workload, "")
        value = ratios.get(workload, {}).get(peer)
        run = next((r for r in results.values() if peer in r["ratios"] and r["workload"] == workload), None)
        if run and (run["foreign_cores"] or 0) + (run["stolen_cores"] or 0) > QUIET:
            why = f"taken while {run['foreign_cores']:.2f} cores were busy for others"
        yield Goal(name=f"{workload}: times as fast as {peer}", value=value, bound=bound, why=why)
