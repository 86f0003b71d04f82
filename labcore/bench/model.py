"""`labcore bench model`: prefill and decode through the whole engine, each beside its floor.

>>> bench_model("lab", rounds=1)["rows"][0]["name"]       # doctest: +SKIP
'prefill 512'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from labcore.bench.ceilings import MEMORY_BYTES, measure_ceilings, reader
from labcore.bench.engine import EngineRunner
from labcore.bench.harness import Goal, Sample, alternate, timed
from labcore.bench.loading import loading_report
from labcore.bench.stamp import stamp
from labcore.bench.workload import DECODES, PREFILL, Costs, Workload
from labcore.kernels.registry import get_backend
from labcore.loaders.load import load_checkpoint
from labcore.model.weights import load_model

SHARE_OF_FLOOR, READY_SECONDS, RESIDENT_TIMES = 0.65, 1.5, 2.5
WORKLOADS = (PREFILL, *DECODES)
MEMORY = "reading memory"


def bench_model(
    name: str,
    *,
    weights: str = "packed",
    threads: int | None = None,
    rounds: int = 5,
    workloads: Sequence[Workload] = WORKLOADS,
) -> dict[str, Any]:
    """Ceilings, loading, and a row for each workload: tokens/s, bytes, FLOPs, floor and share of the floor. Goals at the end."""
    checkpoint = load_checkpoint(name)
    costs, backend = Costs(checkpoint, weights), get_backend(threads=threads)
    ceilings = measure_ceilings(threads)
    runner, seeds = EngineRunner(load_model(checkpoint, weights=weights, backend=backend)), count()

    def sample(workload: Workload) -> Sample:
        return lambda: [runner.run(workload, workload.prompts(checkpoint.config.vocab_size, next(seeds)))]

    sample(workloads[0])()  # pages are touched, threads started
    samples = {workload.name: sample(workload) for workload in workloads}
    samples[MEMORY] = timed(reader(ceilings.threads), seconds=0.1)  # in turns with the rest: the machine is as fast for it
    comparison = alternate(samples, rounds=rounds)
    ceilings = ceilings.best(replace(ceilings, read=MEMORY_BYTES / comparison.timings[MEMORY].best))
    rows = []
    for workload in workloads:
        timing, cost = comparison.timings[workload.name], costs.of(workload)
        floor = cost.floor(ceilings, costs.packed)
        rows.append(
            {
                "name": workload.name,
                "tokens_per_second": workload.tokens / timing.p50,
                "seconds": timing.p50,
                "spread": timing.spread,
                "bytes": cost.weight_bytes + cost.kv_bytes,
                "flops": cost.matrix_flops + cost.attention_flops,
                "floor_seconds": floor,
                "bound": cost.bound(ceilings, costs.packed),
                "share_of_floor": floor / timing.p50,
            }
        )
    loading = loading_report(name, weights)
    return {
        "stamp": stamp(),
        "model": checkpoint.config.name,
        "weights": weights,
        "threads": ceilings.threads,
        "ceilings": ceilings.document(),
        "rows": rows,
        "run": comparison.document(),
        "loading": loading,
        "goals": [goal.document() for goal in _goals(rows, loading)],
    }


def _goals(rows: list[dict[str, Any]], loading: dict[str, Any]) -> list[Goal]:
    shares = {row["name"]: row["share_of_floor"] for row in rows}
    growth, size = loading["resident_growth"], loading["file_bytes"]
    alone = DECODES[0].name
    goals = [
        Goal(name=f"{alone}: share of the floor", value=shares.get(alone), bound=SHARE_OF_FLOOR),
        Goal(name="model ready, s", value=loading["seconds"], bound=READY_SECONDS, at_least=False),
    ]
    if size:  # a model made from a seed has no file
        times, why = (None, "the system does not tell the resident set") if growth is None else (growth / size, "")
        goals.append(Goal(name="resident growth / file", value=times, bound=RESIDENT_TIMES, at_least=False, why=why))
    return goals
