"""What passes between the three verbs of a step: the plan, what was sampled, and what it brought each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from labcore.core.errors import NumericalError
from labcore.engine.sequence import FinishReason, Sequence
from labcore.kv.paged_cache import Copy

Sampled = list[int] | NumericalError  # what a step brought a sequence


class ScheduledSequence(NamedTuple):
    """A sequence's share of a step: its next `num_tokens` tokens; it `samples` if they reach the end of the known ones."""

    sequence: Sequence
    num_tokens: int
    samples: bool

    @property
    def num_samples(self) -> int:
        """Tokens drawn from its last row of logits: one for each answer that begins there."""
        return 1 + self.sequence.num_forks if self.samples else 0


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step. copies: made before anything is written. expired: ended before it, by their deadlines."""

    scheduled: tuple[ScheduledSequence, ...]
    preempted: tuple[Sequence, ...] = ()
    copies: tuple[Copy, ...] = ()
    expired: tuple[Sequence, ...] = ()


class Progress(NamedTuple):
    """What a step brought a sequence: the tokens that were kept, and why it ends, if it does."""

    sequence: Sequence
    num_tokens: int  # computed for it in this step
    tokens: tuple[int, ...]
    reason: FinishReason | None
    forked_from: str = ""  # the sequence that it parted from in this step
