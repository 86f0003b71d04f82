"""`labcore kernels`: every operator on every backend, with its error, its rate and its share of the ceiling; and the goals.

The table calls a backend's methods, as the model does. The goals call the operators with results that are made once, in turns
with numpy and torch. A small operator works in caches, where rates above those of memory are right.

    >>> bench_kernels(size="small", operator="rms_norm")["rows"][0]["backend"]       # doctest: +SKIP
    'native'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from labcore.bench.calls import call_overheads
from labcore.bench.cases import Case, cases
from labcore.bench.ceilings import copier, measure_ceilings
from labcore.bench.contenders import NATIVE, PLAIN, TORCH, contenders
from labcore.bench.harness import Comparison, Goal, alternate, timed
from labcore.bench.stamp import stamp
from labcore.core.errors import InvalidConfig
from labcore.kernels.api import Array, Backend
from labcore.kernels.reference import ReferenceBackend
from labcore.kernels.registry import backend_statuses, get_backend

SIZES = {"small": (512, 512), "large": (4096, 4096)}
ERROR_TOKENS = 256  # the oracle works row by row: the error is taken at so many tokens
ORACLE = "reference"
GOALS = (  # (operator, contender, our time over its time at 512 x 512: at most)
    ("rms_norm", TORCH, 0.30),
    ("rms_norm", PLAIN, 1 / 8),
    ("add_rms_norm", TORCH, 0.35),
    ("rope", TORCH, 0.2),
    ("silu_and_mul", TORCH, 0.6),
    ("softmax", TORCH, 0.9),
)
TIMES_FLOOR = 1.25  # of copying as many bytes, at 4096 x 4096
ARRAYS = {"rms_norm": 2, "add_rms_norm": 4, "rope": 2, "silu_and_mul": 3, "softmax": 2}  # read and written


def bench_kernels(
    *, size: str = "small", operator: str | None = None, threads: int | None = None, rounds: int = 5
) -> dict[str, Any]:
    """Backends, ceilings, a row for each operator and backend, the contenders' times, call overheads, goals.

    Raises InvalidConfig for an operator that there is not.
    """
    tokens, hidden = SIZES[size]
    every = cases(tokens, hidden)
    if operator is not None and operator not in {*every, *ARRAYS}:
        raise InvalidConfig(f"operator is {operator!r}; expected one of {', '.join(dict.fromkeys([*every, *ARRAYS]))}")
    ceilings, statuses = measure_ceilings(threads), backend_statuses()
    backends = [get_backend(s.name, threads=ceilings.threads) for s in statuses if s.available]
    if size == "large":
        backends = [backend for backend in backends if backend.name != ORACLE]  # a product would take it minutes
    few = cases(min(tokens, ERROR_TOKENS), hidden)
    rows: list[dict[str, Any]] = []
    for name, case in every.items():
        if operator in (None, name):
            rows += _rows(case, few[name], backends, rounds)
    ceilings = ceilings.best(measure_ceilings(threads))
    for row in rows:
        floor = ceilings.floor(bytes=row["bytes"], flops=row["flops"], copied=True)
        row["share_of_ceiling"] = floor / row["p50"]
    wanted = [name for name in ARRAYS if operator in (None, name)]
    races = {name: race(each, rounds) for name, each in contenders(*SIZES["small"], ceilings.threads).items() if name in wanted}
    return {
        "stamp": stamp(("torch",)),
        "backends": [{"name": s.name, "available": s.available, "reason": s.reason} for s in statuses],
        "threads": ceilings.threads,
        "size": size,
        "ceilings": ceilings.document(),
        "rows": rows,
        "contenders": {name: run.document() for name, run in races.items()},
        "calls": [asdict(row) for row in call_overheads()],
        "goals": [goal.document() for goal in [*_ratio_goals(races), *_floor_goals(wanted, ceilings.threads, rounds)]],
    }


def _rows(case: Case, few: Case, backends: list[Backend], rounds: int) -> list[dict[str, Any]]:
    by_backend = {backend.name: case.call_on(backend) for backend in backends}
    run = alternate({name: timed(call) for name, call in by_backend.items()}, rounds=rounds)
    want = few.call_on(ReferenceBackend(np.float64))()
    rows = []
    for backend in backends:
        timing = run.timings[backend.name]
        rows.append(
            {
                "operator": case.operator,
                "shape": case.shape,
                "backend": backend.name,
                "p50": timing.p50,
                "p99": timing.p99,
                "spread": timing.spread,
                "error": error_against(want, backend, few.call_on(backend)()),
                "bytes": case.bytes,
                "flops": case.flops,
                "bytes_per_second": case.bytes / timing.p50,
                "flops_per_second": case.flops / timing.p50,
                "intensity": case.flops / case.bytes,
            }
        )
    return rows


def error_against(want: np.ndarray, backend: Backend, got: Array) -> float:
    """The largest difference from the oracle, over its largest number."""
    return float(np.abs(np.asarray(backend.to_numpy(got), np.float64) - want).max() / max(np.abs(want).max(), 1e-30))


def race(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> Comparison:
    return alternate({name: timed(call) for name, call in contenders.items()}, rounds=rounds)


def _ratio_goals(races: Mapping[str, Comparison]) -> list[Goal]:
    goals = []
    for operator, other, bound in GOALS:
        if operator in races:
            missing = [who for who in (NATIVE, other) if who not in races[operator].timings]
            value = None if missing else races[operator].ratio(NATIVE, other)
            why = f"{' and '.join(missing)} cannot run here" if missing else ""
            name = f"{operator} 512 x 512: time over {other}'s"
            goals.append(Goal(name=name, value=value, bound=bound, at_least=False, why=why))
    return goals


def _floor_goals(operators: list[str], threads: int, rounds: int) -> list[Goal]:
    tokens, hidden = SIZES["large"]
    natives = {name: each.get(NATIVE) for name, each in contenders(tokens, hidden, threads).items() if name in operators}
    goals = []
    for name, call in natives.items():
        copy = copier(threads, ARRAYS[name] * 4 * tokens * hidden)  # in turns with it: the machine is as fast for both
        run = None if call is None else race({NATIVE: call, "copy": copy}, rounds)
        value, why = (None, "native cannot run here") if run is None else (run.ratio(NATIVE, "copy"), "")
        title = f"{name} 4096 x 4096: time over that of copying as much"
        goals.append(Goal(name=title, value=value, bound=TIMES_FLOOR, at_least=False, why=why))
    return goals
