"""What one sequence gets of a step: its next known tokens, as many as the budget allows, and guesses behind the last of them."""

from __future__ import annotations

from labcore.engine.plan import ScheduledSequence
from labcore.engine.proposer import Proposer
from labcore.engine.sequence import Sequence


def share_of(
    sequence: Sequence, proposer: Proposer, num_running: int, limit: int, budget: int, spare: int, positions: int
) -> ScheduledSequence:
    """limit: tokens of a sequence in any step; budget: tokens left in this one, `spare` of them wanted by nobody else.

    positions: how far its block table can grow without taking blocks from another. Guesses never grow past it, nor past the
    longest that the sequence may become, unless they may not be cut short: then they come whole, or in a later step.
    """
    known = len(sequence.token_ids)
    uncomputed, room = known - sequence.num_computed_tokens, min(limit, budget)
    if uncomputed > room:
        return ScheduledSequence(sequence, room, samples=False)
    most = 0 if sequence.num_forks else min(limit - 1, sequence.max_length - known - 1)
    wanted = min(proposer.length(sequence, num_running), most) if most > 0 else 0
    if wanted:
        possible = min(room - uncomputed, positions - known)
        if not proposer.whole(sequence):
            wanted = max(0, min(wanted, possible, spare - uncomputed))
        elif wanted > possible:
            return ScheduledSequence(sequence, uncomputed - 1, samples=False)
    return ScheduledSequence(sequence, uncomputed + wanted, samples=True, num_draft=wanted)
