"""What a request asks for, checked when it is made.

>>> SamplingParams(temperature=0.0, max_tokens=4).greedy
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

from labcore.core.errors import InvalidRequest

_MAX_SEED = 2**64 - 1
_LARGEST_BIAS = 1e4
_MOST_LOGPROBS = 100
INF = float("inf")

# name -> (kind, least, most, what is expected); "not least <= x <= most" and never "x < least or x > most": a NaN fails the first
_RANGES: dict[str, tuple[type, float, float, str]] = {
    "max_tokens": (Integral, 1, INF, "a whole number, 1 or more"),
    "min_tokens": (Integral, 0, INF, "a whole number, 0 or more"),
    "n": (Integral, 1, 1 << 16, "a whole number, 1 or more"),
    "temperature": (Real, 0.0, 1e6, "a number from 0 to 1,000,000"),
    "top_k": (Integral, 0, INF, "a whole number, 0 (all) or more"),
    "top_p": (Real, 5e-324, 1.0, "a number above 0, up to 1"),
    "min_p": (Real, 0.0, 1.0, "a number from 0 to 1"),
    "repetition_penalty": (Real, 1e-3, 1e3, "a number from 0.001 to 1,000; 1 changes nothing"),
    "presence_penalty": (Real, -2.0, 2.0, "a number from -2 to 2"),
    "frequency_penalty": (Real, -2.0, 2.0, "a number from -2 to 2"),
}
_OPTIONAL: dict[str, tuple[type, float, float, str]] = {
    "seed": (Integral, 0, _MAX_SEED, "a whole number from 0 to 2**64 - 1, or None"),
    "logprobs": (Integral, 0, _MOST_LOGPROBS, f"a whole number from 0 to {_MOST_LOGPROBS}, or None"),
    "prompt_logprobs": (Integral, 0, _MOST_LOGPROBS, f"a whole number from 0 to {_MOST_LOGPROBS}, or None"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen, and when to stop. The rules apply in this order: penalties, bias, what is allowed, temperature,
    top-k, top-p, min-p.

    max_tokens:     tokens to generate, 1 or more.
    min_tokens:     tokens before which no end-of-sequence or stop token is chosen.
    n:              answers to the same prompt; it is computed once, and they part at their first token.
    temperature:    0 = greedy (ties go to the lowest id); otherwise logits are divided by it.
    top_k:          keep the k most probable tokens; 0 = all.
    top_p:          keep the most probable tokens while the mass before a token is below p; at least one (Holtzman et al. 2020).
    min_p:          keep tokens at least this share as probable as the most probable one (Nguyen et al. 2024).
    repetition_penalty: positive logits of tokens in prompt or answer are divided by it, others multiplied (Keskar et al. 2019).
    presence_penalty, frequency_penalty: taken from the logits of tokens in the answer, once, and once for each time.
    logit_bias:     added to the logits of these token ids.
    allowed_token_ids: nothing else is chosen; None = anything.
    seed:           of this request's random numbers; None = derived from the engine's seed and the order of arrival.
    stop_token_ids: end the request, besides the model's own end-of-sequence tokens.
    stop:           texts that end the request where one appears.
    include_stop:   whether the answer keeps the stop text that ended it.
    ignore_eos:     go on past the model's end-of-sequence tokens.
    logprobs:       also tell the log-probabilities of the chosen token and of so many of the most probable, before any rule.
    prompt_logprobs: the same of each prompt token but the first; its prefix is then computed, and not taken from a cache.
    choices, regex: the answer is one of these texts, or matches this pattern as a whole.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    allowed_token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    choices: tuple[str, ...] = ()
    regex: str = ""

    def __post_init__(self) -> None:
        for name, (kind, least, most, expected) in _RANGES.items():
            _check(name, getattr(self, name), kind, least, most, expected)
            own = int if kind is Integral else float  # numpy's numbers have ends, and fractions no arrays
            object.__setattr__(self, name, own(getattr(self, name)))
        for name, (kind, least, most, expected) in _OPTIONAL.items():
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), kind, least, most, expected)
                object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("ignore_eos", "include_stop"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} is {getattr(self, name)!r}; expected True or False")
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            allowed = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not allowed:
                raise InvalidRequest("allowed_token_ids is empty; expected a token id at least, or None")
            object.__setattr__(self, "allowed_token_ids", allowed)
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        object.__setattr__(self, "stop", _texts("stop", (self.stop,) if isinstance(self.stop, str) else self.stop))
        object.__setattr__(self, "choices", _texts("choices", self.choices))
        if not isinstance(self.regex, str):
            raise InvalidRequest(f"regex is {self.regex!r}; expected a pattern")
        self._refuse_conflicts()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def plain_greedy(self) -> bool:
        """The best token as the model gives it, as far as this tells."""
        return self.greedy and not (self.penalized or self.logit_bias or self.allowed_token_ids)

    @property
    def penalized(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def _refuse_conflicts(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest(f"min_tokens is {self.min_tokens}; expected at most max_tokens, {self.max_tokens}")
        given = [name for name in ("choices", "regex", "allowed_token_ids") if getattr(self, name)]
        if len(given) > 1:
            raise InvalidRequest(f"{given[0]} and {given[1]} are both given; expected one of them")
        if self.min_tokens and (self.choices or self.regex):
            raise InvalidRequest(f"min_tokens is {self.min_tokens}; expected 0 with {given[0]}, which says where the answer ends")


def _check(name: str, value: object, kind: type, low: float, high: float, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:  # type: ignore[operator]
        raise InvalidRequest(f"{name} is {value!r}; expected {expected}")


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise InvalidRequest(f"{name} is {value!r}; expected token ids")
    tokens = tuple(value)  # a list could change after its check
    for token in tokens:
        _check(name, token, Integral, 0, INF, "token ids, 0 or more")
    return tuple(map(int, tokens))


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        raise InvalidRequest(f"{name} is {value!r}; expected texts")
    texts = tuple(value)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"{name} has {text!r}; expected texts that are not empty")
    return texts


def _bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"logit_bias is {value!r}; expected {{token id: number}}")
    for token, bias in value.items():
        _check("logit_bias", token, Integral, 0, INF, "token ids, 0 or more")
        _check("logit_bias", bias, Real, -_LARGEST_BIAS, _LARGEST_BIAS, f"numbers from {-_LARGEST_BIAS:g} to {_LARGEST_BIAS:g}")
    return {int(token): float(bias) for token, bias in value.items()}
