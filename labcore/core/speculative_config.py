"""What an engine is told of speculation."""

from __future__ import annotations

from dataclasses import dataclass

from labcore.core.checks import at_least, one_of
from labcore.core.errors import InvalidConfig

PROPOSERS = ("none", "ngram", "draft")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Who guesses the next tokens, for a step to verify.

    method:           "none", "ngram" (what followed the last few tokens where they stood before), "draft" (a smaller model).
    num_draft_tokens: guesses for a sequence in a step, at the most.
    adaptive:         as many as their measured acceptance pays for; else always the most.
    min_ngram, max_ngram: tokens that must stand before a guess by "ngram"; longer ones are looked for first.
    draft_layers:     for "draft" without a model of its own: the first layers of the model itself.
    """

    method: str = "none"
    num_draft_tokens: int = 4
    adaptive: bool = True
    min_ngram: int = 2
    max_ngram: int = 4
    draft_layers: int = 1

    def __post_init__(self) -> None:
        one_of(PROPOSERS, self, "method")
        at_least(1, self, "num_draft_tokens", "min_ngram", "max_ngram", "draft_layers")
        if self.min_ngram > self.max_ngram:
            raise InvalidConfig(f"min_ngram is {self.min_ngram}; expected at most max_ngram, {self.max_ngram}")
        if not isinstance(self.adaptive, bool):
            raise InvalidConfig(f"adaptive is {self.adaptive!r}; expected True or False")
