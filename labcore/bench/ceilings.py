"""The ceilings of this machine: how fast memory is read and copied, how fast float32 and int8 numbers are multiplied.

No operator is faster than the slower of its bytes at the read (or copy) rate and its arithmetic at the multiply rate: that is
its floor, and a measurement beside it says what is left to gain (Williams, Waterman & Patterson 2009, the roofline). The
C++ kernels measure where they are built: `read`, `copy`, `multiply_adds` and `int8_dots` of their `Operators`. Elsewhere numpy
does, which reaches less. A rate is the best of a few rounds: a ceiling is what the machine can do, not what it does on average.

    >>> ceilings = measure_ceilings(threads=1)          # doctest: +SKIP
    >>> ceilings.floor(bytes=1e9, flops=0)              # seconds to read a gigabyte        # doctest: +SKIP
    0.085
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from labcore.bench.harness import QUIET
from labcore.bench.timing import LoadWatch, stopwatch
from labcore.core.errors import BackendUnavailable
from labcore.core.machine import num_cores
from labcore.kernels.native import NativeBackend

ROUNDS, TRIES = 5, 6
MEMORY_BYTES = 1 << 28  # larger than caches, those shared with neighbours included
MULTIPLIES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Rates with this many threads. int8_dots is None where only numpy measured: it has no such product."""

    threads: int
    read: float  # bytes/s
    copy: float  # bytes/s, those read and those written
    multiply_adds: float  # float32 operations/s, two in a multiply-add
    int8_dots: float | None  # int8 operations/s, two in a multiply-add
    measured_by: str  # "native avx512", "numpy"

    def floor(self, *, bytes: float = 0, flops: float = 0, int8_ops: float = 0, copied: bool = False) -> float:
        """The least seconds that so many bytes and operations take: the slowest of the three. copied: half of them written."""
        by_dots = int8_ops / (self.int8_dots or self.multiply_adds)
        return max(bytes / (self.copy if copied else self.read), flops / self.multiply_adds + by_dots)

    def best(self, again: Ceilings) -> Ceilings:
        """Rate by rate the higher of two measurements: one that others disturbed would make every share look too good."""
        rates = ("read", "copy", "multiply_adds", "int8_dots")
        higher: dict[str, Any] = {rate: max(getattr(self, rate) or 0, getattr(again, rate) or 0) or None for rate in rates}
        return replace(self, **higher)

    def document(self) -> dict[str, Any]:
        return asdict(self)


def measure_ceilings(threads: int | None = None, num_bytes: int = MEMORY_BYTES, tries: int = TRIES) -> Ceilings:
    """Take the ceilings (about a second, more while others use the cores). threads: None = all cores of this process."""
    threads = num_cores() if threads is None else threads
    best: Ceilings | None = None
    for _ in range(tries):
        watch = LoadWatch()
        taken = _take(threads, num_bytes)
        best = taken if best is None else best.best(taken)
        if watch.load().total <= QUIET:
            break
    assert best is not None
    return best


class NumpyProbes:
    """What `Operators` measures with, where the C++ kernels are not built."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._square = np.ones((1 << 10, 1 << 10), np.float32)

    def read(self, x: np.ndarray) -> None:
        self._together(np.max, x)  # faster than a sum, which waits for its additions

    def copy(self, out: np.ndarray, x: np.ndarray) -> None:
        self._together(np.copyto, out, x)

    def multiply_adds(self, count: int) -> None:
        for _ in range(count // self._square.size // len(self._square)):
            self._square @ self._square

    def _together(self, call: Callable[..., object], *arrays: np.ndarray) -> None:
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(call, *(np.array_split(array, self._threads) for array in arrays)))


def _take(threads: int, num_bytes: int) -> Ceilings:
    native = _native_probes(threads)
    probes = _probes(threads)
    return Ceilings(
        threads=threads,
        read=_rate(num_bytes, reader(threads, num_bytes)),
        copy=_rate(2 * num_bytes, copier(threads, 2 * num_bytes)),
        multiply_adds=_rate(2 * MULTIPLIES, lambda: probes.multiply_adds(MULTIPLIES)),
        int8_dots=_rate(2 * MULTIPLIES, lambda: probes.int8_dots(MULTIPLIES)) if native else None,
        measured_by=f"native {native.isa}" if native else "numpy",
    )


def reader(threads: int, num_bytes: int = MEMORY_BYTES) -> Callable[[], object]:
    """A call that reads so many bytes of memory, each written before."""
    source, probes = np.ones(num_bytes // 4, np.float32), _probes(threads)
    return lambda: probes.read(source)


def copier(threads: int, num_bytes: int) -> Callable[[], object]:
    """A call that moves so many bytes: half of them are read, half are written."""
    source, target, probes = np.ones(num_bytes // 8, np.float32), np.ones(num_bytes // 8, np.float32), _probes(threads)
    return lambda: probes.copy(target, source)


def read_bandwidth(num_bytes: int = MEMORY_BYTES) -> float:
    """Bytes per second that all cores together read from memory."""
    return measure_ceilings(num_bytes=num_bytes).read


def _probes(threads: int) -> Any:
    native = _native_probes(threads)
    return native._operators if native else NumpyProbes(threads)


def _native_probes(threads: int) -> NativeBackend | None:
    try:
        backend = NativeBackend(threads=threads)
    except BackendUnavailable:
        return None
    return backend if hasattr(backend._operators, "int8_dots") else None


def _rate(amount: float, call: Callable[[], object]) -> float:
    """Amount per second, at best."""
    best = float("inf")
    for _ in range(ROUNDS):
        with stopwatch() as watch:
            call()
        best = min(best, watch.seconds)
    return amount / best
