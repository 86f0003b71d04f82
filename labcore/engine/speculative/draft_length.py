"""How many guesses pay, by how often they were right.

    >>> draft_length(acceptance=0.9, most=4, num_running=1), draft_length(acceptance=0.05, most=4, num_running=1)
    (4, 0)
"""

from __future__ import annotations

ROW_COST = 0.1  # of a decode step of one sequence, for each row more in it: SmolLM2 on two cores, 2 to 5 rows
RATE, RECOVERY, PRIOR = 0.15, 0.02, 0.5  # how fast acceptance follows what is seen, and comes back where nothing was guessed


def followed(acceptance: float, num_draft: int, num_accepted: int) -> float:
    """The estimate of acceptance after a draft: its guesses were judged up to the first wrong one."""
    if not num_draft:
        return acceptance + RECOVERY * (PRIOR - acceptance)  # so that it is tried again
    for right in [1.0] * num_accepted + [0.0] * (num_accepted < num_draft):
        acceptance += RATE * (right - acceptance)
    return acceptance


def expected_tokens(acceptance: float, num_draft: int) -> float:
    """Tokens that a pass with so many guesses brings, each right with this probability (Leviathan et al. 2023)."""
    return sum(acceptance**i for i in range(num_draft + 1))


def step_cost(num_draft: int, num_running: int, draft_cost: float = 0.0) -> float:
    """Of a step in which all have such drafts, in steps of one sequence. draft_cost: of a pass of the draft model, likewise."""
    verify = 1 + ROW_COST * (num_running * (num_draft + 1) - 1)
    return verify + draft_cost * (num_draft + 1) * (1 + ROW_COST * (num_running - 1))


def draft_length(acceptance: float, most: int, num_running: int, draft_cost: float = 0.0) -> int:
    """The number of guesses that brings the most tokens for its cost; the smaller of equals."""
    value = [expected_tokens(acceptance, k) / step_cost(k, num_running, draft_cost) for k in range(most + 1)]
    return value.index(max(value))
