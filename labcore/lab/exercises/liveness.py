"""Checks on preemption and progress: what it costs to come back, and a test of liveness that is graded by the faults it finds.

>>> check_return(lambda num_computed, block_size, num_evicted: None).right
False
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labcore.core.trace import StepRecord
from labcore.engine.scheduler import Scheduler
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike
from labcore.lab.faults import FAULTS, SOUND, Fault
from labcore.lab.oracle import TOKEN, sequence

MOST_STEPS = 20_000  # of a learner's test on one scheduler after the other, together


def check_return(answer: Answer) -> Verdict:
    """answer(num_computed, block_size, num_evicted): tokens of the step in which a preempted sequence comes back."""
    cases = [(40, 16, 0), (37, 4, 0), (37, 4, 3), (32, 16, 0), (48, 16, 3), (5, 8, 0), (100, 16, 2)]
    return judge(answer, named("num_computed, block_size, num_evicted", *cases), unlike(_return, "the engine computed", "tokens"),
                 "the engine")  # fmt: skip


def _return(num_computed: int, block_size: int, num_evicted: int) -> int:
    scheduler, _ = SOUND.scheduler(num_computed + 2, block_size, "radix")
    one = sequence("one", num_computed, max_tokens=4)
    scheduler.add(one)
    scheduler.update(scheduler.schedule(), [[TOKEN]])
    scheduler._preempt(one)
    scheduler.cache.prefix_cache.evict(num_evicted)
    return scheduler.schedule().scheduled[0].num_tokens


class NoEnd(BaseException):
    """Raised in a test that steps for ever; no `except Exception` holds it up."""


@dataclass(slots=True)
class _Trial:
    """What a test did with one kind of scheduler."""

    made: int = 0  # schedulers it asked for
    steps: int = 0
    error: Exception | None = None
    endless: bool = False


def _trial(test: Callable[..., object], fault: Fault) -> _Trial:
    trial = _Trial()

    def make(num_blocks: int, **more: Any) -> tuple[Scheduler, list[StepRecord]]:
        scheduler, records = fault.scheduler(num_blocks, **more)
        schedule, trial.made = scheduler.schedule, trial.made + 1

        def counted() -> Any:
            trial.steps += 1
            if trial.steps > MOST_STEPS:
                raise NoEnd
            return schedule()

        scheduler.schedule = counted  # type: ignore[method-assign]
        return scheduler, records

    try:
        test(make)
    except NoEnd:
        trial.endless = True
    except Exception as error:  # whatever it raises: the test has failed
        trial.error = error
    return trial


def check_liveness(test: Callable[..., object]) -> Verdict:
    """test(make) must pass with the engine's scheduler, and raise with each of the faulty ones.

    make(num_blocks=..., block_size=16, prefix_cache="none", **limits) gives a scheduler and the list of its records.
    """
    sound = _trial(test, SOUND)
    if sound.endless:
        return Verdict(False, f"wrong: on the engine your test made more than {MOST_STEPS:,} steps, and was cut off")
    if sound.error is not None:
        said = f"{type(sound.error).__name__}: {sound.error}".rstrip(": ")
        return Verdict(False, f"wrong: your test fails on the engine itself, which has none of the faults ({said})")
    if not sound.steps:
        return Verdict(False, "not answered yet: your test makes no step of a scheduler that it got from make(num_blocks=...)")
    trials = {name: _trial(test, fault) for name, fault in FAULTS.items()}
    alive = [name for name, trial in trials.items() if trial.error is None and not trial.endless]
    endless = [name for name, trial in trials.items() if trial.endless]
    found = f"it passes on the engine and finds {len(trials) - len(alive) - len(endless)} of {len(trials)} faults"
    if not alive and not endless:
        return Verdict(True, f"right: {found}")
    missed = f"; not found: {', '.join(alive)}" if alive else ""
    loops = f"; it never ends, which tells nobody anything, on: {', '.join(endless)}" if endless else ""
    return Verdict(False, f"wrong: {found}{missed}{loops}")
