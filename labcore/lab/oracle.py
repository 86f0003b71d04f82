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

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import FinishReason, Sequence
from labcore.kv.paged_cache import PagedCache

TOKEN = 1  # what the oracle always says


def scheduler_of(
    num_blocks: int, block_size: int, kind: type[Scheduler] = Scheduler, prefix_cache: str = "none", **limits: Any
) -> tuple[Scheduler, list[StepRecord]]:
    """A scheduler over an empty pool, and the list that its step records go to. limits: fields of SchedulerConfig."""
    records: list[StepRecord] = []
    cache = PagedCache(CacheConfig(num_blocks=num_blocks, block_size=block_size, prefix_cache=prefix_cache))
    return kind(SchedulerConfig(**limits), cache, records.append), records


def sequence(name: str, num_prompt_tokens: int, max_tokens: int) -> Sequence:
    """A request of so many tokens, whatever they say; it ends by length alone."""
    return Sequence(
        request_id=name,
        token_ids=[TOKEN] * num_prompt_tokens,
        num_prompt_tokens=num_prompt_tokens,
        params=SamplingParams(max_tokens=max_tokens),
        seed=0,
        stop_token_ids=frozenset(),
        max_length=num_prompt_tokens + max_tokens,
        length_reason=FinishReason.LENGTH,
    )


def drive(scheduler: Scheduler, most_steps: int = 10_000) -> int:
    """Step until all is finished, `most_steps` at the most; returns the number of steps made."""
    begun = scheduler.num_steps
    while scheduler.has_unfinished and scheduler.num_steps - begun < most_steps:
        plan = scheduler.schedule()
        scheduler.update(plan, [[TOKEN] * share.num_samples for share in plan.scheduled])
    return scheduler.num_steps - begun
