"""Requests that a scheduler never takes, since they could never run: each refused by name, with the numbers that say why."""

from __future__ import annotations

from collections.abc import Container

from labcore.core.config import SchedulerConfig
from labcore.core.errors import InvalidRequest
from labcore.engine.sequence import Sequence
from labcore.kv.paged_cache import PagedCache


def refuse(sequence: Sequence, live: Container[str], cache: PagedCache, config: SchedulerConfig) -> None:
    """live: names that are in use. Raises InvalidRequest."""
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
