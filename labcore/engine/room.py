"""Whether there is room for a request: ever, and if those who are less urgent made way."""

from __future__ import annotations

from collections.abc import Container

from labcore.core.config import SchedulerConfig
from labcore.core.errors import InvalidRequest
from labcore.engine.sequence import Sequence
from labcore.kv.paged_cache import PagedCache


def refuse(sequence: Sequence, live: Container[str], cache: PagedCache, config: SchedulerConfig) -> None:
    """Whom a scheduler never takes, with the numbers that say why. live: names that are in use. Raises InvalidRequest."""
    who, pool = f"request {sequence.request_id!r}", cache.allocator.num_blocks
    if sequence.request_id in live:
        raise InvalidRequest(f"request id {sequence.request_id!r} is in use; wait until it has finished, or choose another")
    needed = cache.blocks_for(sequence.num_prompt_tokens + 1)
    if needed > pool:
        raise InvalidRequest(
            f"{who}: prompt of {sequence.num_prompt_tokens} tokens and one more need "
            f"{needed} KV blocks of {cache.block_size}; the pool has {pool}"
        )
    if 1 + sequence.num_forks > config.max_num_seqs:
        raise InvalidRequest(f"{who}: n is {1 + sequence.num_forks}; at most {config.max_num_seqs} run at a time")
    if config.policy != "priority" and sequence.priority != 0:
        raise InvalidRequest(f"{who}: priority is {sequence.priority}; the policy is {config.policy}: expected 0")


def may_fit(urgent: Sequence, running: list[Sequence], num_seats: int, cache: PagedCache, config: SchedulerConfig) -> bool:
    """Whether there could be room for it without those who are less urgent. num_seats: that all who run take."""
    lesser = [s for s in running if s.priority > urgent.priority]
    seats = num_seats + 1 + urgent.num_forks - sum(1 + s.num_forks for s in lesser)
    blocks = cache.num_available + len({block for s in lesser for block in s.block_table})
    hit = cache.prefix_cache.match_length(urgent.token_ids, urgent.domain) // cache.block_size
    return cache.blocks_for(len(urgent.token_ids)) - hit <= blocks and seats <= config.max_num_seqs
