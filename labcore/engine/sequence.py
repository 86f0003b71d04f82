"""One request on its way: its tokens, how many of them are computed, the blocks that hold them.

There is no prefill and no decode, only two counters: a sequence whose `num_computed_tokens` is behind its tokens has work to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import Any, Protocol

from labcore.engine.sampling_params import SamplingParams
from labcore.kv.prefix_cache import ANYONE, Domain


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    STOP = "stop"  # an end-of-sequence or stop token
    LENGTH = "length"  # max_tokens, or the model's context is full
    KV_EXHAUSTED = "kv_exhausted"  # the whole KV pool cannot hold one token more
    ABORT = "abort"  # the caller gave it up
    TIMEOUT = "timeout"  # its deadline passed
    ERROR = "error"  # its logits held no number to choose by; `Sequence.error` says where


class Reader(Protocol):
    """Reads an answer token by token and knows where its text ends it."""

    def feed(self, token: int, may_stop: bool = True) -> bool:
        """The next token; True if a stop text is complete with it. may_stop: whether one counts here."""
        ...

    def fork(self) -> Reader:
        """One for another answer, before its first token."""
        ...


class Constraint(Protocol):
    """What may come next, by a state that is a number; `start` is the one before the first token."""

    start: int

    def allowed(self, state: int) -> Any:
        """The token ids that may come, as an array; None = any."""
        ...

    def next(self, state: int, token: int) -> int:
        """The state behind an allowed token."""
        ...


class NoReader:
    """No text ends the answer."""

    def feed(self, token: int, may_stop: bool = True) -> bool:
        return False

    def fork(self) -> NoReader:
        return self


class Anything:
    """Any token may come."""

    start = 0

    def allowed(self, state: int) -> Any:
        return None

    def next(self, state: int, token: int) -> int:
        return state


NO_READER, ANYTHING = NoReader(), Anything()


def answer_name(request_id: str, index: int) -> str:
    """What an answer is called in records: the first as its request, `a`; the second to request a is `a#1`."""
    return f"{request_id}#{index}" if index else request_id


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """State of one request, or of one of the n answers to it. What must survive a preemption lives here, never in a batch."""

    request_id: str
    name: str = field(init=False)  # in records: the request's, and its index behind the first
    index: int = 0  # which of its request's answers this is
    num_forks: int = 0  # answers that part from this one when the prompt is computed; 0 once they have
    arrival: int = 0  # place in the order of arrival
    priority: int = 0  # smaller goes first
    deadline: float = inf  # on the scheduler's clock
    domain: Domain = ANYONE  # with whom it may share cached blocks
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
    acceptance: float = 0.5  # how often guesses at its tokens were right, of late
    lookup: Any = None  # where its n-grams stand, if somebody guesses by them
    reader: Reader = NO_READER  # knows the text of the answer
    constraint: Constraint = ANYTHING  # what the answer may be
    state: int = 0  # of the constraint
    prompt_logprobs: list[Any] = field(default_factory=list)  # of each prompt token but the first, as far as they are known
    num_overtaken: int = 0  # times that another was admitted before it while it was first in the queue
    block_table: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = answer_name(self.request_id, self.index)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Who goes first, and is preempted last: priority, then age."""
        return self.priority, self.arrival, self.index

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def fork(self, index: int, block_table: list[int]) -> Sequence:
        """Another answer to the same request, as far as this one is."""
        return replace(
            self, index=index, num_forks=0, token_ids=list(self.token_ids), block_table=block_table, num_preemptions=0,
            reader=self.reader.fork(), lookup=None,
        )  # fmt: skip

    def append(self, tokens: list[int]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Append sampled tokens one by one, up to the one that ends the sequence; returns what was kept, and why it ends."""
        for i, token in enumerate(tokens, 1):
            self.token_ids.append(token)
            self.state = self.constraint.next(self.state, token)
            if reason := self._reason_after(token):
                return tuple(tokens[:i]), reason
        return tuple(tokens), None

    def _reason_after(self, token: int) -> FinishReason | None:
        """Whether the request ends with this token, which has just been appended."""
        length = len(self.token_ids)
        if self.reader.feed(token, length - self.num_prompt_tokens >= self.params.min_tokens) or token in self.stop_token_ids:
            return FinishReason.STOP
        if length >= self.max_length:
            return self.length_reason
        return None
