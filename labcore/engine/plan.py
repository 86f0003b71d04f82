"""What passes between the three verbs of a step: the plan, what was sampled, and what it brought each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from labcore.core.errors import NumericalError
from labcore.engine.sequence import FinishReason, Sequence
from labcore.kv.paged_cache import Copy

Sampled = list[int] | NumericalError  # what a step brought a sequence


class Draft(NamedTuple):
    """Guesses at the tokens behind the known ones. laws: what each was drawn from (vocab_size,); none if chance had no part."""

    tokens: tuple[int, ...] = ()
    laws: tuple[Any, ...] = ()


NO_DRAFT = Draft()


class ScheduledSequence(NamedTuple):
    """A sequence's share of a step: its next `num_tokens` tokens; it `samples` if they reach the end of the known ones.

    num_draft: of these, guesses behind the known ones, which the step verifies.
    """

    sequence: Sequence
    num_tokens: int
    samples: bool
    num_draft: int = 0

    @property
    def draft_span(self) -> tuple[int, int]:
        """The positions of its guesses, from and up to."""
        end = self.sequence.num_computed_tokens + self.num_tokens
        return end - self.num_draft, end

    @property
    def num_samples(self) -> int:
        """Tokens that it brings at the least: one for each answer that begins there."""
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
    num_draft: int = 0  # guesses that were verified
    num_accepted: int = 0  # of these, right ones
