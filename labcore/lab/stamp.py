"""Times in the book: shown with the machine they were taken on, and never a reason to fail.

>>> with stopwatch() as watch:
...     sum(range(1000))
>>> report_ratio("a decode step", watch.seconds, floor=0.005)    # doctest: +SKIP
a decode step: 9.8 ms, floor 5.0 ms, 2.0 times the floor
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

from labcore.core.machine import num_cores
from labcore.kernels.registry import get_backend


@dataclass(slots=True)
class Watch:
    """`seconds` is set when the block of `stopwatch` is left."""

    seconds: float = float("nan")


@contextmanager
def stopwatch() -> Iterator[Watch]:
    """Time a block."""
    watch, begun = Watch(), time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - begun


def median_seconds(call: Callable[[], object], repeat: int = 5) -> float:
    """The median time of a call, after one that does not count."""
    call()
    times = []
    for _ in range(repeat):
        with stopwatch() as watch:
            call()
        times.append(watch.seconds)
    return statistics.median(times)


def read_bandwidth(num_bytes: int = 1 << 28) -> float:
    """Bytes per second that all cores together read from memory: the best of five sums over an array larger than caches."""
    parts = np.array_split(np.ones(num_bytes // 8), num_cores())
    with ThreadPoolExecutor(len(parts)) as pool:
        times = []
        for _ in range(5):
            with stopwatch() as watch:
                list(pool.map(np.sum, parts))
            times.append(watch.seconds)
    return num_bytes / min(times)


def machine() -> str:
    """The stamp: processor, cores, versions, backend, day."""
    backend = get_backend()
    kind = " ".join(filter(None, [backend.name, getattr(backend, "isa", None)]))
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{_processor()}, {num_cores()} cores, {platform.system()}; {versions}; backend {kind}; {date.today()}"


def duration(seconds: float) -> str:
    """Three digits and a unit.

    >>> duration(0.00981)
    '9.81 ms'
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def report_ratio(what: str, seconds: float, floor: float) -> None:
    """Print a measured time beside the floor that was computed for it (seconds). Never raises: a time proves nothing."""
    ratio = f"{seconds / floor:.1f} times the floor" if floor > 0 else "no floor"
    print(f"{what}: {duration(seconds)}, floor {duration(floor)}, {ratio}")


def _processor() -> str:
    if sys.platform == "linux":
        try:
            lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
