"""What an answer may be: anything, certain tokens, one of some texts, a match of a pattern; as the tokens allowed at each place.

A pattern becomes an automaton over the vocabulary (Willard & Louf 2023), by the package outlines-core. Its state belongs to the
sequence: a number. The automaton prefers the first alternative of a pattern, as a search does: behind `a` of `a|ab` it would be
done. So the end of the text is made a part of the pattern, and, since an automaton that asks for the end must have begun, so is a
byte before the text, which is no part of the answer.

    >>> constraint = constraint_of(SamplingParams(choices=("yes", "no")), LabTokenizer())
    >>> sorted(map(bytes, constraint.allowed(constraint.start) ...      # doctest: +SKIP
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from outlines_core import Index, Vocabulary

from labcore.core.errors import InvalidRequest
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.sequence import ANYTHING, Anything, Constraint
from labcore.loaders.tokenizer import Tokenizer


class Listed(Anything):
    """Only these tokens may come."""

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self._token_ids = np.array(token_ids, np.int64)  # once: of 24,000 ids it takes as long as a row's law

    def allowed(self, state: int) -> np.ndarray:
        return self._token_ids


class Pattern:
    """The answer matches a regular expression as a whole, and ends there."""

    def __init__(self, regex: str, tokenizer: Tokenizer) -> None:
        if not tokenizer.eos_token_ids:
            raise InvalidRequest("regex and choices need a token that ends a text; this model has none")
        self._before = tokenizer.vocab_size  # the id of the byte before the text
        try:
            Index(regex, Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)}))  # what is no pattern says so by itself
            self._index = Index(f"\x02(?:{regex})\\z", _vocabulary(tokenizer))  # type: ignore[arg-type]
        except ValueError as error:
            raise InvalidRequest(f"regex is {regex!r}, which cannot be used: {error}") from None
        start = self._index.get_next_state(self._index.get_initial_state(), self._before)
        if start is None or not len(self.allowed(start)):
            raise InvalidRequest(f"regex is {regex!r}, which no text of this vocabulary matches")
        self.start = int(start)

    def allowed(self, state: int) -> np.ndarray:
        allowed = np.sort(np.array(self._index.get_allowed_tokens(state), np.int64))
        return allowed[allowed < self._before]

    def next(self, state: int, token: int) -> int:
        following = self._index.get_next_state(state, token)
        return state if following is None else int(following)  # None: the end


def constraint_of(params: SamplingParams, tokenizer: Tokenizer) -> Constraint:
    """Raises InvalidRequest: a pattern that is none, or that nothing matches."""
    if params.allowed_token_ids is not None:
        return Listed(params.allowed_token_ids)
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
    ids.setdefault(b"\x02", []).append(tokenizer.vocab_size)
    return Vocabulary(min(tokenizer.eos_token_ids), ids)
