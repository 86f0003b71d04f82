"""Writes down what a scheduler does, step by step, for whoever observes it. `NoRecorder` writes nothing and costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from labcore.core.trace import ArrivalRecord, ScheduledRecord, StepRecord
from labcore.engine.plan import Progress, SchedulerOutput
from labcore.engine.sequence import FinishReason
from labcore.engine.sequence import Sequence as Request
from labcore.kv.paged_cache import PagedCache


class Recorder(Protocol):
    """Told what happens, in the order in which it happens."""

    def arrived(self, sequence: Request) -> None:
        """A request was queued."""
        ...

    def gone(self, sequence: Request, reason: FinishReason) -> None:
        """A sequence was given up, or its deadline passed."""
        ...

    def booked(self, progress: Sequence[Progress]) -> None:
        """A step is booked, and the sequences that it ended still hold their blocks."""
        ...

    def closed(self, step: int, output: SchedulerOutput, waiting: int, running: int, idle_reason: str) -> None:
        """The books of a step are closed."""
        ...


class NoRecorder:
    """Nobody looks."""

    def arrived(self, sequence: Request) -> None:
        return None

    def gone(self, sequence: Request, reason: FinishReason) -> None:
        return None

    def booked(self, progress: Sequence[Progress]) -> None:
        return None

    def closed(self, step: int, output: SchedulerOutput, waiting: int, running: int, idle_reason: str) -> None:
        return None


class StepRecorder:
    """Hands a `StepRecord` to the observer at the end of every step."""

    def __init__(self, cache: PagedCache, observer: Callable[[StepRecord], None]) -> None:
        self._cache, self._observer = cache, observer
        self._arrived: list[ArrivalRecord] = []  # all of these: since the last record
        self._gone: dict[FinishReason, list[str]] = {FinishReason.ABORT: [], FinishReason.TIMEOUT: []}
        self._kept: dict[int, None] = {}  # blocks in the cache now, and those that it gave up in between
        self._evicted: dict[int, None] = {}
        self._shares: tuple[ScheduledRecord, ...] = ()
        self._finished: tuple[str, ...] = ()
        self._forked: tuple[tuple[str, str], ...] = ()
        self._asked = (0, 0)  # tokens queried and hit, in all, when the last record was made
        cache.prefix_cache.watch(self._cached)

    def arrived(self, sequence: Request) -> None:
        params = asdict(sequence.params) | {"seed": sequence.seed}
        self._arrived.append(
            ArrivalRecord(
                request_id=sequence.request_id, prompt=tuple(sequence.token_ids), params=params, priority=sequence.priority,
                salt=sequence.domain.salt, adapter=sequence.domain.adapter,
            )
        )  # fmt: skip

    def gone(self, sequence: Request, reason: FinishReason) -> None:
        self._gone[reason].append(sequence.name)

    def _cached(self, block: int, kept: bool) -> None:
        """A block comes into the prefix cache or goes, maybe both since the last record: it has gone before it is there."""
        if kept:
            self._kept[block] = None
        else:
            self._kept.pop(block, None)
            self._evicted[block] = None

    def booked(self, progress: Sequence[Progress]) -> None:
        self._shares = tuple([_share(one) for one in progress])
        self._finished = tuple([p.sequence.name for p in progress if p.reason is not None])
        self._forked = tuple([(p.forked_from, p.sequence.name) for p in progress if p.forked_from])

    def closed(self, step: int, output: SchedulerOutput, waiting: int, running: int, idle_reason: str) -> None:
        stats, allocator = self._cache.prefix_cache.stats, self._cache.allocator
        asked, self._asked = self._asked, (stats.queried_tokens, stats.hit_tokens)
        free, idle = allocator.num_free, allocator.num_idle
        record = StepRecord(
            step=step,
            arrived=_drained(self._arrived),
            scheduled=self._shares,
            preempted=tuple([s.name for s in output.preempted]),
            finished=self._finished,
            aborted=_drained(self._gone[FinishReason.ABORT]),
            expired=_drained(self._gone[FinishReason.TIMEOUT]),
            forked=self._forked,
            copied=output.copies,
            kept=_drained(self._kept),
            evicted=_drained(self._evicted),
            queried_tokens=self._asked[0] - asked[0],
            hit_tokens=self._asked[1] - asked[1],
            waiting=waiting,
            running=running,
            free_blocks=free,
            cached_blocks=idle,
            used_blocks=allocator.num_blocks - free - idle,
            idle_reason=idle_reason,
        )
        self._observer(record)  # last: whatever an observer does, the books are closed


def _drained(since: list[Any] | dict[Any, None]) -> tuple[Any, ...]:
    """What has come together since the last record, which begins anew."""
    if not since:
        return ()
    drained = tuple(since)
    since.clear()
    return drained


def _share(progress: Progress) -> ScheduledRecord:
    sequence = progress.sequence
    ended = progress.reason or sequence.finish_reason
    return ScheduledRecord(
        request_id=sequence.name,
        num_tokens=progress.num_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        num_tokens_known=len(sequence.token_ids),
        sampled=progress.tokens,
        block_ids=tuple(sequence.block_table),
        state=ended.value if ended else "running",
        error=sequence.error,
        num_draft=progress.num_draft,
        num_accepted=progress.num_accepted,
    )
