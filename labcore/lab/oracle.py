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
from labcore.engine.plan import Sampled, ScheduledSequence, SchedulerOutput
from labcore.engine.proposer import NoProposer
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import Sequence
from labcore.kv.paged_cache import PagedCache

__all__ = ["TOKEN", "Guessing", "drive", "scheduler_of", "sequence", "varied_tokens"]


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


class Guessing(NoProposer):
    """Wants so many guesses in every step; the oracle says which of them stand."""

    def __init__(self, count: int) -> None:
        self._count = count

    def length(self, sequence: Sequence, num_running: int) -> int:
        return self._count


def varied_tokens(plan: SchedulerOutput) -> list[Sampled]:
    """Tokens that follow from the answer's index and the position; of guesses none, some or all stand, in turns."""
    return [_varied(share) for share in plan.scheduled]


def _varied(share: ScheduledSequence) -> Sampled:
    known, first = len(share.sequence.token_ids), share.sequence.index
    places = [(known, index) for index in range(first, first + share.num_samples)]
    if share.num_draft:
        places = [(known + i, first) for i in range(1 + known % (share.num_draft + 1))]
    return [256 + (7 * position + 13 * index) % 700 for position, index in places]
