"""Which guesses of a draft stand: by agreement where they were chosen without chance, by rejection sampling where drawn.

Rejection (Leviathan et al. 2023, Chen et al. 2023): a guess x, drawn from q where the model says p, stands if a coin u in [0, 1)
has u < p(x) / q(x); at the first that falls, the token is drawn from max(p - q, 0). Then each token has law p, whatever q is,
if q is the very law the guess was drawn from, and if the comparison is strict: a guess with p(x) = 0 never stands, even at u = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from labcore.core.errors import NumericalError
from labcore.engine.plan import Draft, Sampled
from labcore.engine.sampler import draw


def agreeing(draft: Draft, chosen: Sequence[int | NumericalError]) -> Sampled:
    """chosen: what the model chose behind the known tokens and behind each guess. Its choices up to the first that disagrees.

    A row without a number counts only if it is reached, and then alone: the tokens before it are told in this step.
    """
    tokens: list[int] = []
    for i, token in enumerate(chosen):
        if isinstance(token, NumericalError):
            return tokens or token
        tokens.append(token)
        if i < len(draft.tokens) and token != draft.tokens[i]:
            break
    return tokens


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """What is left to draw from when a guess fell: max(p - q, 0), not normalised; p itself where nothing is left."""
    left = np.maximum(p - q, 0.0)
    return left if left.any() else p


def rejected(
    draft: Draft, laws: Sequence[np.ndarray | NumericalError], coin: Callable[[int], float], number: Callable[[int], float]
) -> Sampled:
    """laws: of the model behind the known tokens and behind each guess, (vocab_size,) each. coin, number: of the i-th place."""
    tokens: list[int] = []
    for i, p in enumerate(laws):
        if isinstance(p, NumericalError):
            return tokens or p
        if i == len(draft.tokens):
            return [*tokens, draw(p, number(i))]
        guess, q = draft.tokens[i], draft.laws[i]
        if not coin(i) * q[guess] < p[guess]:
            return [*tokens, draw(residual(p, q), number(i))]
        tokens.append(guess)
    return tokens
