"""Contenders measured side by side: in turns within one run, compared round by round.

A machine is not equally fast all the time. So contenders take turns (A B, B A, A B, ...), a ratio is the median of the ratios
of the rounds, and a run on a machine that was busy with something else is taken again. Limits: a ratio holds for this machine,
these threads and these versions, which the stamp names.

    >>> comparison = alternate({"a": timed(lambda: sum(range(1000))), "b": timed(lambda: sum(range(4000)))}, rounds=5)
    >>> comparison.ratio("b", "a") > 1      # b takes longer
    True
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labcore.bench.timing import Load, LoadWatch
from labcore.core.errors import InvalidConfig

Sample = Callable[[], Sequence[float]]  # one round of a contender: its times in seconds, one or more

QUIET = 0.15  # cores that others may use during a run that counts as quiet
WARM_SECONDS = 0.003  # threads of whoever came before may spin this long after their work


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times of one contender, in seconds: of all calls, and the median of each round."""

    p50: float
    p99: float
    best: float
    spread: float  # (third quartile - first) / median, of the rounds
    rounds: tuple[float, ...]

    @classmethod
    def of(cls, rounds: Sequence[Sequence[float]]) -> Timing:
        calls = sorted(seconds for one in rounds for seconds in one)
        medians = tuple(statistics.median(one) for one in rounds)
        return cls(
            p50=statistics.median(calls),
            p99=calls[math.ceil(0.99 * len(calls)) - 1],
            best=calls[0],
            spread=_quartile_range(medians) / statistics.median(medians),
            rounds=medians,
        )

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("p50", "p99", "best", "spread")} | {"rounds": list(self.rounds)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a run found."""

    timings: Mapping[str, Timing]
    load: Load
    tries: int

    def ratio(self, name: str, other: str) -> float:
        """How many times as long `name` takes as `other`: the median over the rounds."""
        pairs = zip(self.timings[name].rounds, self.timings[other].rounds, strict=True)
        return statistics.median(a / b for a, b in pairs)

    def document(self) -> dict[str, Any]:
        return {
            "timings": {name: timing.document() for name, timing in self.timings.items()},
            "foreign_cores": self.load.foreign,
            "stolen_cores": self.load.stolen,
            "tries": self.tries,
        }


def alternate(
    samples: Mapping[str, Sample], *, rounds: int = 7, pids: Mapping[str, int] | None = None, tries: int = 3, quiet: float = QUIET
) -> Comparison:
    """Run every contender once a round, in turns; of up to `tries` runs the first quiet one counts, or else the quietest.

    pids: the process in which a contender works, where it is not this one.
    """
    if not samples or rounds < 1 or tries < 1:
        raise InvalidConfig(f"{len(samples)} contenders, {rounds} rounds, {tries} tries; expected one or more of each")
    quietest: Comparison | None = None
    for tried in range(1, tries + 1):
        taken: dict[str, list[Sequence[float]]] = {name: [] for name in samples}
        watch = LoadWatch()
        for number in range(rounds):
            for name in list(samples) if number % 2 == 0 else reversed(list(samples)):
                with watch.own((pids or {}).get(name, os.getpid())):
                    taken[name].append(samples[name]())
        load = watch.load()
        if quietest is None or load.total < quietest.load.total:
            quietest = Comparison(timings={name: Timing.of(each) for name, each in taken.items()}, load=load, tries=tried)
        if load.total <= quiet:
            break
    assert quietest is not None
    return quietest


def timed(call: Callable[[], object], *, seconds: float = 0.02, most: int = 200) -> Sample:
    """A sample that warms up, then times single calls for about so many seconds: at least one, at most `most`."""

    def sample() -> list[float]:
        clock = time.perf_counter
        warm = clock() + WARM_SECONDS
        call()
        while clock() < warm:
            call()
        times: list[float] = []
        end = clock() + seconds
        while not times or (clock() < end and len(times) < most):
            begun = clock()
            call()
            times.append(clock() - begun)
        return times

    return sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A number that was promised. value: None where it could not be measured, and `why` says the reason."""

    name: str
    value: float | None
    bound: float
    at_least: bool = True
    why: str = ""

    @property
    def met(self) -> bool:
        """What was not measured is not met, and neither is a NaN."""
        if self.value is None:
            return False
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def document(self) -> dict[str, Any]:
        sign = ">=" if self.at_least else "<="
        return {"name": self.name, "value": self.value, "goal": f"{sign} {self.bound:g}", "met": self.met, "why": self.why}


def exit_code(document: Mapping[str, Any], check: bool) -> int:
    """1 if a goal of the document is missed, or was not measured, and somebody wants to know."""
    return int(check and not all(goal["met"] for goal in document["goals"]))


def _quartile_range(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first
