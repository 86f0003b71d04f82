"""What an answer may be: anything, one of some texts, or whatever matches a pattern; as the tokens allowed at each place.

A pattern becomes an automaton over the vocabulary (Willard & Louf 2023), by the package outlines-core. Its state belongs to the
sequence: a number.

    >>> constraint = constraint_of(SamplingParams(choices=("yes", "no")), LabTokenizer())
    >>> sorted(map(bytes, constraint.allowed(constraint.start) ...      # doctest: +SKIP
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from labcore.core.errors import InvalidRequest
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.sequence import ANYTHING, Constraint
from labcore.loaders.tokenizer import Tokenizer

try:
    from outlines_core import Index, Vocabulary
except ModuleNotFoundError:
    Index = None


class Pattern:
    """The answer matches a regular expression as a whole, and ends there."""

    def __init__(self, regex: str, tokenizer: Tokenizer) -> None:
        if Index is None:
            raise InvalidRequest("regex and choices need the package outlines-core; run `pip install outlines-core`")
        if not tokenizer.eos_token_ids:
            raise InvalidRequest("regex and choices need a token that ends a text; this model has none")
        try:
            self._index = Index(regex, _vocabulary(tokenizer))  # type: ignore[arg-type]
        except ValueError as error:
            raise InvalidRequest(f"regex is {regex!r}, which cannot be used: {error}") from None
        self.start: int = self._index.get_initial_state()
        if not self._index.get_allowed_tokens(self.start):
            raise InvalidRequest(f"regex is {regex!r}, which no text of this vocabulary matches")

    def allowed(self, state: int) -> np.ndarray | None:
        return np.sort(np.array(self._index.get_allowed_tokens(state), np.int64))

    def next(self, state: int, token: int) -> int:
        following = self._index.get_next_state(state, token)
        return state if following is None else int(following)  # None: the end


def constraint_of(params: SamplingParams, tokenizer: Tokenizer) -> Constraint:
    """Raises InvalidRequest: a pattern that is none, or that nothing matches."""
    regex = params.regex or "|".join(f"({re.escape(choice)})" for choice in params.choices)
    return _pattern(regex, tokenizer) if regex else ANYTHING  # type: ignore[arg-type]  # tokenizers are hashed by identity


@lru_cache(maxsize=64)
def _pattern(regex: str, tokenizer: Tokenizer) -> Pattern:
    return Pattern(regex, tokenizer)


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    ids: dict[bytes, list[int]] = {}
    for token in range(tokenizer.vocab_size):
        if not tokenizer.is_special(token) and (piece := tokenizer.token_bytes(token)):
            ids.setdefault(piece, []).append(token)
    return Vocabulary(min(tokenizer.eos_token_ids), ids)
