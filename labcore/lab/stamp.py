"""Times in the book: shown with the machine they were taken on, and never a reason to fail.

>>> with stopwatch() as watch:
...     total = sum(range(1000))
>>> report_ratio("a decode step", watch.seconds, floor=0.005)    # doctest: +SKIP
a decode step: 9.8 ms, floor 5.0 ms, 2.0 times the floor
"""

from __future__ import annotations

from labcore.bench.ceilings import read_bandwidth
from labcore.bench.stamp import sentence, stamp
from labcore.bench.timing import Watch, duration, median_seconds, stopwatch

__all__ = ["Watch", "duration", "machine", "median_seconds", "read_bandwidth", "report_ratio", "stopwatch"]


def machine() -> str:
    """The stamp: processor, cores, versions, backend, day."""
    return sentence(stamp())


def report_ratio(what: str, seconds: float, floor: float) -> None:
    """Print a measured time beside the floor that was computed for it (seconds). Never raises: a time proves nothing."""
    ratio = f"{seconds / floor:.1f} times the floor" if floor > 0 else "no floor"
    print(f"{what}: {duration(seconds)}, floor {duration(floor)}, {ratio}")
