"""Whether a way of verifying drafts keeps the law: a world of 8 tokens in which all laws are known, and the chi-square test.

A model and a draft model are tables here: a law behind each run of tokens. Answers of two tokens are made by drafting and
verifying, as the engine does, and counted; a way that keeps the law gives p-values that are uniform, a faulty one gives 0.

    >>> here = world(seed=0, top_k=3)
    >>> tokens = answers(here, 2_000, seed=1)
    >>> p_value(np.bincount(tokens[:, 0], minlength=8), here.p[0]) > 0.01
    True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import erfc, exp, gamma, inf, sqrt
from typing import Any

import numpy as np

from labcore.engine.plan import Draft
from labcore.engine.sampler import draw, probabilities
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.verify import rejected, residual

SIZE = 8
LEAST = 5  # expected answers of a cell; smaller cells count as one

WORLDS: dict[str, dict[str, Any]] = {
    "whole laws": {}, "zeros in p and q": {"banned": 4}, "top-k": {"top_k": 3}, "top-p": {"top_p": 0.7, "temperature": 0.8},
}  # fmt: skip

Laws = tuple[np.ndarray, ...]  # behind no token, one, two: (8,), (8, 8), (8, 8, 8)
Numbers = Callable[[int], float]  # the random number of the i-th place
Verify = Callable[..., Any]  # as labcore.engine.verify.rejected


@dataclass(frozen=True, slots=True)
class World:
    """p: the laws of the model. q: those that guesses are drawn from. raw: those of the draft model before any rule."""

    p: Laws
    q: Laws
    raw: Laws

    @property
    def joint(self) -> np.ndarray:
        """The law of the first two tokens, (8, 8)."""
        first, second = self.p[:2]
        return first[:, None] * second


def world(seed: int, banned: int = 0, **rules: Any) -> World:
    """Random laws after these rules (fields of SamplingParams). banned: tokens that each law lacks, p and q different ones."""
    rng, params = np.random.default_rng(seed), SamplingParams(**rules)
    shapes = [(SIZE,) * (depth + 1) for depth in range(3)]
    model = [1.2 * rng.standard_normal(shape) for shape in shapes]
    draft = [0.6 * logits + 0.8 * rng.standard_normal(logits.shape) for logits in model]
    for logits in (*model, *draft):
        for row in logits.reshape(-1, SIZE):
            row[rng.permutation(SIZE)[:banned]] = -np.inf
    return World(_laws(model, params), _laws(draft, params), _laws(draft, SamplingParams()))


def _laws(logits: Iterable[np.ndarray], params: SamplingParams) -> Laws:
    return tuple(np.apply_along_axis(probabilities, -1, each, params) for each in logits)


def coarse_world() -> World:
    """All p / q are sixteenths: coins of sixteenths keep the law here, and are 0 once in 16 times."""
    p = np.array([0, 0, 8, 12, 16, 24, 28, 40]) / 128
    model, draft = (tuple(np.broadcast_to(law, (SIZE,) * (n + 1)) for n in range(3)) for law in (p, np.full(SIZE, 1 / SIZE)))
    return World(model, draft, draft)


def verifier(stands: Callable[[float, float, float], bool], left: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Verify:
    """A way to verify. stands(coin, p, q): whether a guess does; left(p, q): what the token is drawn from where it does not."""

    def verify(draft: Draft, laws: Sequence[np.ndarray], coin: Numbers, number: Numbers) -> list[int]:
        tokens: list[int] = []
        for i, (guess, p, q) in enumerate(zip(draft.tokens, laws, draft.laws, strict=False)):
            if not stands(coin(i), p[guess], q[guess]):
                return [*tokens, draw(left(p, q), number(i))]
            tokens.append(guess)
        return [*tokens, draw(laws[-1], number(len(tokens)))]

    return verify


FAULTS: dict[str, Verify] = {
    "coin inclusive": verifier(lambda u, p, q: u * q <= p, residual),
    "not divided by q": verifier(lambda u, p, q: u < p, residual),
    "residual not subtracted": verifier(lambda u, p, q: u * q < p, lambda p, q: p),
}


def answers(here: World, num: int, seed: int, verify: Verify = rejected, told: Laws | None = None, grain: int = 0) -> np.ndarray:
    """So many answers of two tokens, (num, 2), each by drafts of two guesses, then of one where the first fell at once.

    told: what the verifier takes for q. grain: coins are multiples of 1 / grain; 0 = as fine as they can be.
    """
    rng = np.random.default_rng(seed)
    drawn, coins, numbers = rng.random((num, 3)), rng.random((num, 3)), rng.random((num, 5))
    if grain:
        coins = np.floor(coins * grain) / grain
    told = told or here.q
    first = _draw(np.broadcast_to(here.q[0], (num, SIZE)), drawn[:, 0])
    second = _draw(here.q[1][first], drawn[:, 1])
    tokens = np.empty((num, 2), np.int64)
    for n, (a, b, coin, number) in enumerate(zip(first.tolist(), second.tolist(), coins.tolist(), numbers.tolist(), strict=True)):
        draft = Draft((a, b), (told[0], told[1][a]))
        kept = verify(draft, [here.p[0], here.p[1][a], here.p[2][a, b]], coin.__getitem__, number.__getitem__)
        if len(kept) == 1:
            [one] = kept
            guess = draw(here.q[1][one], drawn[n, 2])
            laws = [here.p[1][one], here.p[2][one, guess]]
            kept += verify(Draft((guess,), (told[1][one],)), laws, coin[2:].__getitem__, number[3:].__getitem__)
        tokens[n] = kept[:2]
    return tokens


def _draw(laws: np.ndarray, u: np.ndarray) -> np.ndarray:
    """A token from each row, as `draw`. laws: (num, 8)."""
    cumulative = np.cumsum(laws, axis=1)
    return np.argmax(cumulative > (u * cumulative[:, -1])[:, None], axis=1)


def counts_of(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often each first token came, (8,), and each pair, (8, 8)."""
    pairs = np.bincount(tokens[:, 0] * SIZE + tokens[:, 1], minlength=SIZE * SIZE).reshape(SIZE, SIZE)
    return pairs.sum(axis=1), pairs


def chi_square(counts: np.ndarray, law: np.ndarray) -> tuple[float, int]:
    """The statistic of Pearson's test and its degrees of freedom; infinite where something came that has no mass."""
    seen, expected = counts.ravel(), counts.sum() * law.ravel()
    if seen[expected == 0].any():
        return inf, int(np.count_nonzero(expected)) - 1
    small = expected < LEAST
    if expected[small].sum():
        seen, expected = (np.append(each[~small], each[small].sum()) for each in (seen, expected))
    else:
        seen, expected = seen[~small], expected[~small]
    return float(((seen - expected) ** 2 / expected).sum()), len(seen) - 1


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """How often a sample of this law would lie as far from it as these counts, or farther."""
    return survival(*chi_square(counts, law))


def survival(x: float, degrees: int) -> float:
    """P(chi-square >= x): the finite sums for whole degrees of freedom (Abramowitz and Stegun 26.4.4, 26.4.5)."""
    if not degrees:
        return float(x == 0)
    if x > 1400:  # e^-700 and its powers: no float64 is as small
        return 0.0
    half, begin = x / 2, (degrees % 2) / 2
    tail = erfc(sqrt(half)) if begin else 0.0
    return tail + exp(-half) * sum(half ** (k + begin) / gamma(k + begin + 1) for k in range(degrees // 2))


def uniform_p_value(values: Sequence[float]) -> float:
    """Whether numbers are uniform on [0, 1]: the Kolmogorov-Smirnov test, by its limit for many of them."""
    ordered, n = np.sort(values), len(values)
    distance = max((np.arange(1, n + 1) / n - ordered).max(), (ordered - np.arange(n) / n).max())
    return min(1.0, 2 * sum((-1) ** (k - 1) * exp(-2 * k * k * n * distance**2) for k in range(1, 101)))


def table(num: int, seed: int = 19) -> list[dict[str, Any]]:
    """The right way in every world, then each faulty one where it shows: of each, chi-square of first tokens and of pairs."""
    worlds = {name: world(seed, **rules) for name, rules in WORLDS.items()}
    coarse, top_k = coarse_world(), worlds["top-k"]
    runs: list[tuple[str, str, World, dict[str, Any]]] = [("right", name, here, {}) for name, here in worlds.items()]
    runs.append(("right", "coins of sixteenths", coarse, {"grain": 16}))
    runs.append(("coin inclusive", "coins of sixteenths", coarse, {"grain": 16, "verify": FAULTS["coin inclusive"]}))
    runs.append(("q before truncation", "top-k", top_k, {"told": top_k.raw}))
    for fault in ("not divided by q", "residual not subtracted"):
        runs.append((fault, "top-k", top_k, {"verify": FAULTS[fault]}))
    rows = []
    for way, name, here, how in runs:
        first, pairs = counts_of(answers(here, num, seed, **how))
        rows.append({
            "way": way, "world": name, "right": way == "right",
            "first": _told(first, here.p[0]), "pairs": _told(pairs, here.joint),
        })  # fmt: skip
    return rows


def _told(counts: np.ndarray, law: np.ndarray) -> dict[str, Any]:
    statistic, degrees = chi_square(counts, law)
    return {"chi_square": statistic if statistic < inf else None, "degrees": degrees, "p": survival(statistic, degrees)}
