"""What it costs to call a kernel from Python, whatever the kernel then does: nanoseconds, by door.

A decode step of a 30-layer model makes some 400 calls, so a microsecond per call is 0.4 ms per token. Each door is timed
twice: a function that does nothing, and `rms_norm` of one row of 16 numbers, which is three arrays to look at and next to no
work. The least of several rounds counts: whatever else the machine does can only add.

    >>> [row.name for row in call_overheads()]    # doctest: +SKIP
    ['Python function', 'nanobind', 'pybind11', 'ctypes', 'ctypes, arrays prepared', 'torch']
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labcore.core.errors import LabError
from labcore.kernels.build import DOORS, load

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

ROWS, DIM, EPS = 1, 16, 1e-5


@dataclass(frozen=True, slots=True)
class CallOverhead:
    """Nanoseconds per call. `empty_ns` is None where a call without arrays does not exist."""

    name: str
    empty_ns: float | None
    arrays_ns: float


def call_overheads(rounds: int = 50) -> tuple[CallOverhead, ...]:
    """One row for a Python function, each door that is built, and torch; arrays are (1, 16), (1, 16) and (16,)."""
    out, x, weight = np.empty((ROWS, DIM), np.float32), np.ones((ROWS, DIM), np.float32), np.ones(DIM, np.float32)
    rows = [CallOverhead("Python function", _ns(lambda: None, (), rounds), _ns(lambda *arrays: None, (out, x, weight), rounds))]
    for door, module_name in DOORS.items():
        try:
            module = load(module_name)
        except LabError:
            continue
        empty, norm = _ns(module.nothing, (), rounds), module.Operators("", 1).rms_norm
        rows.append(CallOverhead(door, empty, _ns(norm, (out, x, weight, EPS), rounds)))
        if door == "ctypes":
            prepared = tuple(map(module.array, (out, x, weight)))
            rows.append(CallOverhead("ctypes, arrays prepared", empty, _ns(norm, (*prepared, EPS), rounds)))
    return (*rows, *_torch(x, weight, rounds))


def _torch(x: np.ndarray, weight: np.ndarray, rounds: int) -> list[CallOverhead]:
    if torch is None:
        return []
    tensor, scale = torch.from_numpy(x), torch.from_numpy(weight)
    with torch.inference_mode():
        return [CallOverhead("torch", None, _ns(torch.nn.functional.rms_norm, (tensor, (DIM,), scale, EPS), rounds))]


def _ns(function: Callable[..., object], arguments: tuple[object, ...], rounds: int, calls: int = 100) -> float:
    """The least time of a call, the loop around it taken off. Short rounds: a busy machine takes the core away in long ones."""
    names = {f"a{i}": argument for i, argument in enumerate(arguments)}
    times = timeit.repeat(f"f({', '.join(names)})", globals={"f": function, **names}, number=calls, repeat=rounds)
    loop = timeit.repeat("pass", number=calls, repeat=rounds)
    return (min(times) - min(loop)) / calls * 1e9
