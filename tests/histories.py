"""Traces without a model: a scheduler over an oracle that always says the same token, and what its books said after each step."""

from __future__ import annotations

from typing import Any

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.scheduler import Scheduler
from labcore.engine.trace_file import Trace
from labcore.kv.paged_cache import PagedCache
from labcore.kv.radix_cache import RadixCache
from labcore.lab.oracle import TOKEN, sequence


class History:
    """A scheduler over an oracle, and after each step what its books say."""

    def __init__(self, pool: CacheConfig, limits: SchedulerConfig, cached: bool = False) -> None:
        self.records: list[StepRecord] = []
        self.config = EngineConfig(cache=pool, scheduler=limits)
        self.scheduler = Scheduler(limits, PagedCache(pool, RadixCache if cached else None), self.records.append)
        self.books: list[dict[str, tuple[Any, ...]]] = []

    def add(self, name: str, num_prompt_tokens: int, max_tokens: int) -> None:
        self.scheduler.add(sequence(name, num_prompt_tokens, max_tokens))

    def step(self, gives_up: str | None = None) -> None:
        """gives_up: a request whose caller leaves while the step is computed."""
        plan = self.scheduler.schedule()
        if gives_up:
            self.scheduler.abort(gives_up)
        self.scheduler.update(plan, [[TOKEN] * share.num_samples for share in plan.scheduled])
        queued = {s.name: ("waits", 0, len(s.token_ids), ()) for s in self.scheduler.waiting}
        runs = {s.name: ("runs", s.num_computed_tokens, len(s.token_ids), tuple(s.block_table)) for s in self.scheduler.running}
        self.books.append(queued | runs)

    def drain(self) -> History:
        while self.scheduler.has_unfinished:
            self.step()
        return self

    @property
    def alive(self) -> list[str]:
        return [s.name for s in [*self.scheduler.running, *self.scheduler.waiting]]

    @property
    def trace(self) -> Trace:
        return Trace(model="oracle", config=self.config, steps=tuple(self.records), pieces={TOKEN: " x"})


def crowded(cached: bool = False) -> History:
    """Four requests in a pool too small for them: chunks, waiting, preemption; with a cache, shared blocks."""
    limits = SchedulerConfig(max_num_batched_tokens=6, watermark_blocks=0)
    history = History(CacheConfig(num_blocks=10, block_size=4), limits, cached)
    history.add("a", 9, 9)
    history.step()
    history.step()
    for name in "bcd":
        history.add(name, 9, 9)
    return history.drain()
