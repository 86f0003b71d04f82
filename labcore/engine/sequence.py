"""One request on its way: its tokens, how many of them are computed, the blocks that hold them.

There is no prefill and no decode, only two counters: a sequence whose `num_computed_tokens` is behind its tokens has work to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from labcore.engine.sampling_params import SamplingParams


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    STOP = "stop"  # an end-of-sequence or stop token
    LENGTH = "length"  # max_tokens, or the model's context is full
    KV_EXHAUSTED = "kv_exhausted"  # the whole KV pool cannot hold one token more
    ABORT = "abort"  # the caller gave it up
    ERROR = "error"  # its logits held no number to choose by; `Sequence.error` says where


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """State of one request. Everything that must survive a preemption lives here, never in a batch."""

    request_id: str
    token_ids: list[int]  # prompt, then sampled tokens
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    max_length: int  # tokens it may grow to
    length_reason: FinishReason  # why it may not grow further
    status: SequenceStatus = SequenceStatus.WAITING
    finish_reason: FinishReason | None = None
    error: str = ""
    num_computed_tokens: int = 0  # tokens whose K and V are in the pool
    num_cached_tokens: int = 0  # of these, found in the prefix cache at the last admission
    num_preemptions: int = 0
    block_table: list[int] = field(default_factory=list)

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def finish_reason_after(self, token: int) -> FinishReason | None:
        """Whether the request ends with this token, which has just been appended."""
        if token in self.stop_token_ids:
            return FinishReason.STOP
        if len(self.token_ids) >= self.max_length:
            return self.length_reason
        return None
