"""Guesses from the text itself: what followed the last few tokens where they stood before (prompt lookup, Saxena 2023).

It costs a few lookups a token and no model. It is right where an answer repeats its prompt or itself: editing, extracting.

    >>> lookup = Lookup(min_ngram=2, max_ngram=4)
    >>> lookup.guess([1, 2, 3, 4, 1, 2], most=3)
    [3, 4, 1]
"""

from __future__ import annotations

from labcore.core.speculative_config import SpeculativeConfig
from labcore.engine.plan import Draft, SchedulerOutput
from labcore.engine.sequence import Sequence
from labcore.engine.speculative.draft_length import draft_length, followed


class Lookup:
    """Where each run of tokens of a text ended last, read token by token as the text grows."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_read = 0  # tokens up to here are ends of what is known; the last of a text has no continuation yet

    def guess(self, token_ids: list[int], most: int) -> list[int]:
        """What followed the longest known run of the text's last tokens; at most so many."""
        for end in range(self._num_read + 1, len(token_ids)):
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(token_ids[end - size : end])] = end
        self._num_read = max(self._num_read, len(token_ids) - 1)
        for size in self._sizes:
            known = self._ends.get(tuple(token_ids[-size:]))
            if known is not None and size <= len(token_ids):
                return token_ids[known : known + most]
        return []


class NGramProposer:
    """A `Proposer`: its guesses have no chance in them, so the tokens are those of plain decoding, sampled ones too."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config

    def length(self, sequence: Sequence, num_running: int) -> int:
        most = self._config.num_draft_tokens
        if self._config.adaptive:
            most = draft_length(sequence.acceptance, most, num_running)
        return len(self._guess(sequence, most)) if most else 0

    def whole(self, sequence: Sequence) -> bool:
        return False

    def propose(self, output: SchedulerOutput) -> list[Draft]:
        return [Draft(tuple(self._guess(share.sequence, share.num_draft))) for share in output.scheduled]

    def learn(self, sequence: Sequence, num_draft: int, num_accepted: int) -> None:
        sequence.acceptance = followed(sequence.acceptance, num_draft, num_accepted)

    def _guess(self, sequence: Sequence, most: int) -> list[int]:
        if not most:
            return []
        if sequence.lookup is None:
            sequence.lookup = Lookup(self._config.min_ngram, self._config.max_ngram)
        guess: list[int] = sequence.lookup.guess(sequence.token_ids, most)
        return guess
