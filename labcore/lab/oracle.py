"""A scheduler without a model: an oracle says the tokens, so that only the bookkeeping is left to watch.

>>> scheduler, records = scheduler_of(num_blocks=8, block_size=4)
>>> scheduler.add(sequence("a", num_prompt_tokens=5, max_tokens=3))
>>> drive(scheduler)
3
>>> records[-1].finished
('a',)
"""

from __future__ import annotations

from typing import Any

from labcore.bench import oracle
from labcore.bench.oracle import TOKEN, drive
from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import Sequence
from labcore.kv.paged_cache import PagedCache

__all__ = ["TOKEN", "drive", "scheduler_of", "sequence"]


def scheduler_of(
    num_blocks: int, block_size: int, kind: type[Scheduler] = Scheduler, prefix_cache: str = "none", **limits: Any
) -> tuple[Scheduler, list[StepRecord]]:
    """A scheduler over an empty pool, and the list that its step records go to. limits: fields of SchedulerConfig."""
    records: list[StepRecord] = []
    cache = PagedCache(CacheConfig(num_blocks=num_blocks, block_size=block_size, prefix_cache=prefix_cache))
    return kind(SchedulerConfig(**limits), cache, records.append), records


def sequence(name: str, num_prompt_tokens: int, max_tokens: int) -> Sequence:
    """A request of so many tokens, whatever they say; it ends by length alone."""
    return oracle.sequence(name, [TOKEN] * num_prompt_tokens, max_tokens)
