"""How many guesses behind its last known token a sequence gets in a step, when all its known tokens fit."""

from __future__ import annotations

from labcore.engine.plan import ScheduledSequence
from labcore.engine.sequence import Sequence


def with_draft(
    sequence: Sequence, wanted: int, whole: bool, most: int, room: int, spare: int, positions: int
) -> ScheduledSequence:
    """The share of a sequence whose proposer would guess `wanted` tokens. whole: its draft may not be cut short.

    most: tokens of a sequence in any step; room: of it in this one; spare: of these, wanted by nobody else. positions: how far
    its block table may grow. Guesses never go past it, nor past the longest that the sequence may become; where a draft may not
    be cut short for the rest, it comes whole, or in a later step.
    """
    known, uncomputed = len(sequence.token_ids), sequence.num_uncomputed_tokens
    wanted = 0 if sequence.num_forks else max(0, min(wanted, most - 1, sequence.max_length - known - 1))
    possible = min(room - uncomputed, positions - known)
    if wanted > possible and whole:
        return ScheduledSequence(sequence, uncomputed - 1, samples=False)
    if not whole:
        wanted = max(0, min(wanted, possible, spare - uncomputed))
    return ScheduledSequence(sequence, uncomputed + wanted, samples=True, num_draft=wanted)
