"""Log-probabilities of the model's own law: what OpenAI's API calls logprobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labcore.core.errors import NumericalError


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of one place: the chosen token's log-probability, its rank (1 = the most probable), and the most probable tokens."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]  # (token id, log-probability), the most probable first, ties by id


def logprobs_of(logits: np.ndarray, token_id: int, num_top: int) -> Logprobs:
    """Of a row of logits (vocab_size,), before any rule; ties go to the lower id. Raises NumericalError: no largest number."""
    row = logits.astype(np.float64)
    if not np.isfinite(row.max()):
        raise NumericalError(f"the largest logit is {row.max()}; expected a finite number")
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    own = row[token_id]
    rank = int((row > own).sum() + (row[:token_id] == own).sum()) + 1
    top = np.argpartition(-row, min(num_top, len(row) - 1))[:num_top] if num_top else np.array([], np.int64)
    if num_top:  # ties at the border go to the lower id
        border = row[top].min()
        top = np.flatnonzero(row >= border)
        top = top[np.lexsort((top, -row[top]))][:num_top]
    return Logprobs(token_id, float(own), rank, tuple((int(token), float(row[token])) for token in top))
