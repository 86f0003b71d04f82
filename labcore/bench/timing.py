"""Clocks, and what else the machine did meanwhile.

A time that was taken while others used the cores says little. Linux tells how long its cores were busy (/proc/stat), how long
a process ran (/proc/PID/stat), and how long the hypervisor kept the cores for somebody else (steal); from these comes the
foreign load. Where the system does not tell, it is None. The system counts in hundredths of a second, so a watch over less
than a second is coarse.

    >>> with stopwatch() as watch:
    ...     total = sum(range(1000))
    >>> duration(0.00981)
    '9.81 ms'
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


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


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since the machine started, summed over its cores: busy with anybody's work, and stolen by the hypervisor."""

    busy: float
    stolen: float


def cpu_times(proc: Path = PROC) -> CpuTimes | None:
    """What /proc/stat says; None where there is none, or where it counts nothing."""
    try:
        fields = (proc / "stat").read_text().split("\n", 1)[0].split()
        user, nice, system, _, _, interrupts, soft_interrupts, stolen = map(int, fields[1:9])
    except (OSError, ValueError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    busy = user + nice + system + interrupts + soft_interrupts
    return CpuTimes(busy / ticks, stolen / ticks) if busy else None


def process_seconds(pid: int, proc: Path = PROC) -> float:
    """CPU seconds of a process and all its threads; 0.0 where that is not known."""
    if pid == os.getpid() and proc == PROC:
        return time.process_time()
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Cores that were busy for others, and cores that the hypervisor kept, on average; None: the system does not tell."""

    foreign: float | None
    stolen: float | None

    @property
    def total(self) -> float:
        return (self.foreign or 0.0) + (self.stolen or 0.0)


class LoadWatch:
    """Foreign load since it was made. What counts as ours: this process, and what is added with `own`."""

    def __init__(self) -> None:
        self._begun, self._cpu, self._self = time.perf_counter(), cpu_times(), time.process_time()
        self._others = 0.0

    @contextmanager
    def own(self, pid: int) -> Iterator[None]:
        """What the process does within this block is ours, too; what it does outside of it is foreign."""
        if pid == os.getpid():
            yield
            return
        before = process_seconds(pid)
        yield
        self._others += process_seconds(pid) - before

    def load(self) -> Load:
        now, wall = cpu_times(), time.perf_counter() - self._begun
        if now is None or self._cpu is None or wall <= 0:
            return Load(foreign=None, stolen=None)
        ours = time.process_time() - self._self + self._others
        foreign = max(now.busy - self._cpu.busy - ours, 0.0) / wall
        return Load(foreign=foreign, stolen=(now.stolen - self._cpu.stolen) / wall)
