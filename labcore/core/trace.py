"""What one engine step did, as one frozen record: the stream that plots, replays, metrics and liveness tests read.

>>> record = StepRecord(step=0, scheduled=(), waiting=0, running=0, free_blocks=8, cached_blocks=0, used_blocks=0)
>>> record.num_tokens
0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalRecord:
    """A request as it was queued."""

    request_id: str
    prompt: tuple[int, ...]  # token ids
    params: Mapping[str, Any]  # SamplingParams, field by field; the seed is the one that was used
    priority: int = 0
    salt: str = ""
    adapter: str = ""


class ScheduledRecord(NamedTuple):
    """One sequence's share of a step. A tuple, since there is one for every sequence in every step: it is made the fastest."""

    request_id: str  # of its sequence: `a`, or `a#1` for the second answer to it
    num_tokens: int  # tokens computed for it in this step
    num_computed_tokens: int  # tokens computed for it in all, after this step
    num_tokens_known: int  # prompt and sampled tokens, after this step
    sampled: tuple[int, ...]  # empty while the chunk does not reach the end of the known tokens
    block_ids: tuple[int, ...]  # the blocks it held in this step
    state: str  # "running", or the reason it finished for
    error: str = ""  # what went wrong, where that is "error"
    num_draft: int = 0  # of the tokens computed, guesses
    num_accepted: int = 0  # of these, right ones; the step sampled one token more


class StepRecord(NamedTuple):
    """One step: who ran, what it cost, how the pool stands after it. A tuple for the same reason."""

    step: int
    scheduled: tuple[ScheduledRecord, ...]
    waiting: int
    running: int
    free_blocks: int
    cached_blocks: int  # held by the prefix cache alone
    used_blocks: int  # held by sequences
    arrived: tuple[ArrivalRecord, ...] = ()  # queued since the record before
    preempted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()  # given up since the record before
    expired: tuple[str, ...] = ()  # their deadline passed since the record before
    forked: tuple[tuple[str, str], ...] = ()  # (sequence, the other answer that parted from it)
    copied: tuple[tuple[int, int], ...] = ()  # (block, its copy) of blocks that were shared and are written now
    evicted: tuple[int, ...] = ()  # blocks that the prefix cache gave up; then
    kept: tuple[int, ...] = ()  # blocks that came into it, and are there after the step
    queried_tokens: int = 0  # of what was admitted
    hit_tokens: int = 0  # of these, found in the prefix cache
    idle_reason: str = ""  # why nothing was scheduled, if nothing was

    @property
    def num_tokens(self) -> int:
        return sum(share.num_tokens for share in self.scheduled)
