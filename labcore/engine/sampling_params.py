"""What a request asks for, checked when it is made.

>>> SamplingParams(temperature=0.0, max_tokens=4).greedy
True
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real

from labcore.core.errors import InvalidRequest

_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen, and when to stop.

    max_tokens:     tokens to generate, 1 or more.
    n:              answers to the same prompt; it is computed once, and they part at their first token.
    temperature:    0 = greedy (ties go to the lowest id); otherwise logits are divided by it.
    top_k:          keep the k most probable tokens; 0 = all.
    top_p:          keep the most probable tokens while the mass before a token is below p; at least one (Holtzman et al. 2020).
    seed:           of this request's random numbers; None = derived from the engine's seed and the order of arrival.
    stop_token_ids: end the request, besides the model's own end-of-sequence tokens.
    ignore_eos:     go on past the model's end-of-sequence tokens.
    """

    max_tokens: int = 16
    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        # "not lo <= x <= hi" and never "x < lo or x > hi": a NaN fails the first and passes the second
        _check("max_tokens", self.max_tokens, Integral, 1, float("inf"), "a whole number, 1 or more")
        _check("n", self.n, Integral, 1, 1 << 16, "a whole number, 1 or more")
        _check("temperature", self.temperature, Real, 0.0, 1e6, "a number from 0 to 1,000,000")
        _check("top_k", self.top_k, Integral, 0, float("inf"), "a whole number, 0 (all) or more")
        _check("top_p", self.top_p, Real, 5e-324, 1.0, "a number above 0, up to 1")
        if self.seed is not None:
            _check("seed", self.seed, Integral, 0, _MAX_SEED, "a whole number from 0 to 2**64 - 1, or None")
        for name, kind in {"max_tokens": int, "n": int, "top_k": int, "temperature": float, "top_p": float}.items():
            object.__setattr__(self, name, kind(getattr(self, name)))  # numpy's numbers have ends, and fractions no arrays
        if not isinstance(self.stop_token_ids, Iterable):
            raise InvalidRequest(f"stop_token_ids is {self.stop_token_ids!r}; expected token ids")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))  # a list could change after its check
        for token in self.stop_token_ids:
            _check("stop_token_ids", token, Integral, 0, float("inf"), "token ids, 0 or more")
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest(f"ignore_eos is {self.ignore_eos!r}; expected True or False")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _check(name: str, value: object, kind: type, low: float, high: float, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:  # type: ignore[operator]
        raise InvalidRequest(f"{name} is {value!r}; expected {expected}")
