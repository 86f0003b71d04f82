"""From logits to tokens: greedy, temperature, top-k, top-p, with random numbers that belong to the request.

A random number is a function of (request seed, sample index, absolute position) and of nothing else (counter-based, Salmon et
al. 2011), so a seeded request gives the same tokens with any batch mates, in any order of arrival, after any preemption.
"""

from __future__ import annotations

import numpy as np

from labcore.core.errors import NumericalError
from labcore.engine.sampling_params import SamplingParams


def uniform(seed: int, sample_index: int, position: int) -> float:
    """The random number in [0, 1) of this place: Philox 4x64 with key = seed, counter = (position, sample index)."""
    bits = np.random.Philox(key=seed, counter=[position, sample_index, 0, 0]).random_raw()
    return float(int(bits) >> 11) * 2.0**-53


def probabilities(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The law a token is drawn from, float64 (vocab_size,), after temperature, top-k and top-p; ties go to the lower id."""
    scaled = logits.astype(np.float64)
    scaled -= scaled.max()  # before the division: a temperature near 0 then gives -inf, not inf - inf
    with np.errstate(over="ignore"):
        weights = np.exp(scaled / params.temperature)
    if params.top_k or params.top_p < 1.0:
        order = np.argsort(-weights, kind="stable")
        ordered = weights[order]
        keep = np.arange(len(ordered)) < (params.top_k or len(ordered))
        if params.top_p < 1.0:
            mass = np.cumsum(np.where(keep, ordered, 0.0))
            before = np.concatenate([[0.0], mass[:-1]])
            keep &= before < params.top_p * mass[-1]  # the first always stays: nothing is before it
        weights[order[~keep]] = 0.0
    return weights / weights.sum()


def sample(logits: np.ndarray, params: SamplingParams, *, seed: int, position: int, sample_index: int = 0) -> int:
    """One token from one row of logits (vocab_size,). position: of the token to be chosen.

    Raises NumericalError where a NaN, or no finite number, is the largest.
    """
    best = int(np.argmax(logits))  # a NaN counts as the largest
    if not np.isfinite(logits[best]):
        raise NumericalError(
            f"the largest logit of position {position} is {logits[best]} (token id {best}); expected a finite number"
        )
    if params.greedy:
        return best
    cumulative = np.cumsum(probabilities(logits, params))
    u = min(uniform(seed, sample_index, position) * cumulative[-1], np.nextafter(cumulative[-1], 0.0))
    return int(np.argmax(cumulative > u))  # the first token whose mass ends above u: never one of mass 0
