"""Who guesses the next tokens of sequences: the interface, and nobody.

A step computes a sequence's known tokens and a draft behind them together, chooses a token after each as it would have one by
one, and keeps what agrees: up to num_draft + 1 tokens for the price of one pass. What is kept is what plain decoding
gives, bit for bit; where the guesses were drawn by chance themselves, it has the same law (see verify). The proposers are in
`speculative`.
"""

from __future__ import annotations

from typing import Protocol

from labcore.engine.plan import NO_DRAFT, Draft, SchedulerOutput
from labcore.engine.sequence import Sequence


class Proposer(Protocol):
    """The scheduler asks how many (`length`) and tells what became of them (`learn`); the runner asks which (`propose`).

    The number is a function of the sequence's own history alone where `whole` says so.
    """

    def length(self, sequence: Sequence, num_running: int) -> int:
        """Guesses it would make for this sequence in a step with so many sequences."""
        ...

    def whole(self, sequence: Sequence) -> bool:
        """Whether a draft may not be cut short: its guesses are drawn, and which random numbers count depends on its length."""
        ...

    def propose(self, output: SchedulerOutput) -> list[Draft]:
        """The draft of each scheduled sequence: exactly `num_draft` guesses."""
        ...

    def learn(self, sequence: Sequence, num_draft: int, num_accepted: int) -> None:
        """What became of a draft, or that there was none."""
        ...


class NoProposer:
    """One token a step."""

    def length(self, sequence: Sequence, num_running: int) -> int:
        return 0

    def whole(self, sequence: Sequence) -> bool:
        return False

    def propose(self, output: SchedulerOutput) -> list[Draft]:
        return [NO_DRAFT] * len(output.scheduled)

    def learn(self, sequence: Sequence, num_draft: int, num_accepted: int) -> None:
        return None
