"""From logits to tokens: penalties, bias, temperature, top-k, top-p, min-p, and random numbers that belong to the request.

The rules apply in this order, each to a row; rows know nothing of each other. A random number is a function of (request seed,
sample index, absolute position) and of nothing else (see philox), so a seeded request gives the same tokens with any batch mates,
in any order of arrival, after any preemption. Everything here is float64: the law is exact to 1e-15. A backend may bring faster
`draw_rows` and `law_rows` with the same contract.

    >>> probabilities(np.array([1.0, 3.0, 3.0]), SamplingParams(top_k=1))
    array([0., 1., 0.])
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from labcore.core.errors import NumericalError
from labcore.engine.philox import uniform
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.sequence import Sequence

KERNEL_RULES = {"temperature": np.float64, "top_k": np.int64, "top_p": np.float64, "min_p": np.float64}
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
CHOICE, GUESS, COIN = range(3)  # streams of random numbers: the token itself, a draft model's guess at it, whether that stands


@dataclass(frozen=True, slots=True)
class Context:
    """What the rules know of a sequence besides its logits.

    banned: token ids that may not be chosen here. allowed: the only ones that may; None = those that the request lists, or all.
    """

    prompt: Tokens[int] = ()
    output: Tokens[int] = ()
    banned: frozenset[int] = frozenset()
    allowed: np.ndarray | None = None  # token ids

    @property
    def rules(self) -> bool:
        """Whether it forbids anything by itself."""
        return bool(self.banned) or self.allowed is not None


NOTHING = Context()


class Place(NamedTuple):
    """A token to be chosen: from which row of logits, for whom, and behind what."""

    row: int
    params: SamplingParams
    context: Context
    u: float  # its random number in [0, 1)
    position: int

    @property
    def plain(self) -> bool:
        """Whether the largest logit is it."""
        return self.params.plain_greedy and not self.context.rules

    @classmethod
    def behind(cls, sequence: Sequence, row: int, guesses: Tokens[int], stream: int = CHOICE, index: int | None = None) -> Place:
        """The place behind a sequence's known tokens and these guesses. index: of the answer, if not the sequence's own."""
        params, known, prompt = sequence.params, sequence.token_ids, sequence.num_prompt_tokens
        position, state = len(known) + len(guesses), sequence.state
        for token in guesses:
            state = sequence.constraint.next(state, token)
        context = Context(
            prompt=known[:prompt] if params.repetition_penalty != 1.0 else (),
            output=[*known[prompt:], *guesses] if params.penalized else (),
            banned=sequence.stop_token_ids if position - prompt < params.min_tokens else frozenset(),
            allowed=sequence.constraint.allowed(state),
        )
        u = 0.0 if params.greedy else uniform(sequence.seed, sequence.index if index is None else index, position, stream)
        return cls(row, params, context, u, position)


class Edits(NamedTuple):
    """What stands in the place of logits: those of row r are [start[r], start[r + 1])."""

    start: np.ndarray  # int64 (num_rows + 1,)
    ids: np.ndarray  # int64, rising in a row
    values: np.ndarray  # float64

    def of(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        own = slice(self.start[row], self.start[row + 1])
        return self.ids[own], self.values[own]


def masked(rows: np.ndarray, params: Tokens[SamplingParams], contexts: Tokens[Context]) -> np.ndarray:
    """The rows (num_rows, vocab_size), or a copy that has -inf wherever a token is not allowed. A NaN stays one."""
    masks: dict[int, np.ndarray] = {}
    for i, (own, context) in enumerate(zip(params, contexts, strict=True)):
        allowed = own.allowed_token_ids if context.allowed is None else context.allowed
        if allowed is not None:
            masks[i] = np.full_like(rows[i], -np.inf)
            masks[i][np.asarray(allowed, np.int64)] = 0.0
    if masks:
        rows = rows.copy()
        with np.errstate(invalid="ignore"):  # inf - inf
            for i, mask in masks.items():
                rows[i] += mask
    return rows


def edits(rows: np.ndarray, params: Tokens[SamplingParams], contexts: Tokens[Context]) -> Edits:
    """The logits that penalties, bias and bans change, of all rows at once. A NaN stays one, and so does -inf.

    Raises IndexError for an id outside the vocabulary: it would be a token of another row.
    """
    num_rows, vocab_size = rows.shape
    if not any(own.penalized or own.logit_bias or context.banned for own, context in zip(params, contexts, strict=True)):
        return Edits(np.zeros(num_rows + 1, np.int64), np.array([], np.int64), np.array([]))

    def cells(tokens: Tokens[Collection[int]]) -> np.ndarray:
        lengths = [*map(len, tokens)]
        ids = np.fromiter(chain.from_iterable(tokens), np.int64, sum(lengths))
        if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise IndexError(f"token ids {ids.min()} to {ids.max()}; expected ids below {vocab_size}")
        return np.repeat(np.arange(num_rows) * vocab_size, lengths) + ids

    parts = [
        cells([context.prompt if own.repetition_penalty != 1.0 else () for own, context in zip(params, contexts, strict=True)]),
        cells([context.output if own.penalized else () for own, context in zip(params, contexts, strict=True)]),
        cells([own.logit_bias for own in params]),
        cells([context.banned for context in contexts]),
    ]
    cell, where = np.unique(np.concatenate(parts), return_inverse=True)
    row, ids = np.divmod(cell, vocab_size)
    prompt, output, bias, banned = np.split(where, np.cumsum([*map(len, parts)])[:-1])
    repetition, presence, frequency = (np.array([getattr(own, name) for own in params])[row] for name in PENALTIES)
    seen, counts = np.zeros(len(cell), bool), np.bincount(output, minlength=len(cell))
    seen[prompt] = seen[output] = True
    values = rows[row, ids].astype(np.float64)
    values = np.where(seen, np.where(values > 0, values / repetition, values * repetition), values)
    values -= presence * (counts > 0) + frequency * counts
    values[bias] += [value for own in params for value in own.logit_bias.values()]
    with np.errstate(invalid="ignore"):  # inf - inf
        values[banned] -= np.inf
    return Edits(np.searchsorted(row, np.arange(num_rows + 1)), ids, values)


def adjusted(logits: np.ndarray, params: SamplingParams, context: Context = NOTHING) -> np.ndarray:
    """The logits after penalties, bias and what is allowed: float64 (vocab_size,), -inf where nothing may be chosen."""
    rows = masked(logits[None].astype(np.float64), [params], [context])
    ids, values = edits(rows, [params], [context]).of(0)
    rows[0, ids] = values
    return rows[0]


def probabilities(logits: np.ndarray, params: SamplingParams, context: Context = NOTHING) -> np.ndarray:
    """The law a token is drawn from, float64 (vocab_size,), after all rules; ties go to the lower id."""
    return law_of(adjusted(logits, params, context), params)


def law_of(scaled: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The law of adjusted logits; a temperature of 0 puts all of it on the largest."""
    best = int(np.argmax(scaled))
    if params.greedy:
        law = np.zeros_like(scaled)
        law[best] = 1.0
        return law
    scaled = scaled - scaled[best]  # before the division: a temperature near 0 then gives -inf, not inf - inf
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
    if params.min_p:
        weights[weights < params.min_p] = 0.0  # the largest weight is 1
    return weights / weights.sum()


def sample(
    logits: np.ndarray,
    params: SamplingParams,
    *,
    seed: int,
    position: int,
    sample_index: int = 0,
    context: Context = NOTHING,
) -> int:
    """One token from one row of logits (vocab_size,). position: of the token to be chosen.

    Raises NumericalError where a NaN, or no finite number, is the largest.
    """
    u = 0.0 if params.greedy else uniform(seed, sample_index, position)
    token = Sampler().choose(logits[None], [Place(0, params, context, u, position)])[0]
    if isinstance(token, NumericalError):
        raise token
    return token


def draw(law: np.ndarray, u: float) -> int:
    """The first token whose mass, added to that of all before it, is above u; never one of mass 0. u: in [0, 1)."""
    cumulative = np.cumsum(law)
    u = min(u * cumulative[-1], np.nextafter(cumulative[-1], 0.0))
    return int(np.argmax(cumulative > u))


def law_rows(rows: np.ndarray, params: Tokens[SamplingParams], changed: Edits) -> list[np.ndarray | None]:
    """The law of each of these rows, float64 (vocab_size,); None where the largest logit is no finite number."""
    laws: list[np.ndarray | None] = []
    for i, (row, own) in enumerate(zip(rows.astype(np.float64), params, strict=True)):
        ids, values = changed.of(i)
        row[ids] = values
        laws.append(law_of(row, own) if np.isfinite(row.max()) else None)
    return laws


def draw_rows(rows: np.ndarray, params: Tokens[SamplingParams], changed: Edits, u: Tokens[float]) -> list[int]:
    """A token from each of these rows (num_rows, vocab_size); -1 where the largest logit is no finite number."""
    return [-1 if law is None else draw(law, number) for law, number in zip(law_rows(rows, params, changed), u, strict=True)]


class Sampler:
    """Chooses all tokens of a step at once. backend: may bring `draw` and `law` for rows of float32 (see NativeBackend)."""

    def __init__(self, backend: Any = None) -> None:
        native = hasattr(backend, "draw")
        self._draw_rows = _by(backend.draw) if native else draw_rows
        self._law_rows = _by(backend.law) if native else law_rows

    def choose(self, logits: np.ndarray, places: Tokens[Place]) -> list[int | NumericalError]:
        """A token for each place, or why there is none. logits: (num_rows, vocab_size)."""
        plain = [place.plain for place in places]
        ruled = [place for place, by_logit in zip(places, plain, strict=True) if not by_logit]
        drawn = iter(self._draw_rows(*_ruled(logits, ruled), [place.u for place in ruled]) if ruled else ())
        chosen: list[int | NumericalError] = []
        for place, by_logit in zip(places, plain, strict=True):
            token = int(logits[place.row].argmax() if by_logit else next(drawn))  # a NaN counts as the largest
            good = isfinite(logits[place.row, token]) if by_logit else token >= 0
            chosen.append(token if good else _refused(logits, place))
        return chosen

    def laws(self, logits: np.ndarray, places: Tokens[Place]) -> list[np.ndarray | NumericalError]:
        """The law that each place's token is to be drawn from, or why there is none."""
        laws = self._law_rows(*_ruled(logits, places))
        nothing = (law is None or np.isnan(law[0]) for law in laws)  # a kernel has no None, and says it by NaN
        return [_refused(logits, place) if none else law for place, law, none in zip(places, laws, nothing, strict=True)]

    def guesses(self, logits: np.ndarray, places: Tokens[Place]) -> list[tuple[int, np.ndarray | None]]:
        """A draft model's guess at each place, and the law it was drawn from; none where it is the best token."""
        guesses: list[tuple[int, np.ndarray | None]] = []
        for place, law in zip(places, self.laws(logits, places), strict=True):
            if isinstance(law, NumericalError):  # guesses need not be good ones
                law = np.zeros(logits.shape[-1])
                law[0] = 1.0
            guesses.append((draw(law, place.u), None if place.params.greedy else law))
        return guesses


def _ruled(logits: np.ndarray, places: Tokens[Place]) -> tuple[np.ndarray, list[SamplingParams], Edits]:
    """Each place's row, its numbers, and its edits."""
    order, params, contexts = ([getattr(place, name) for place in places] for name in ("row", "params", "context"))
    rows = logits if order == list(range(len(logits))) else logits[order]  # at 32 rows of 49,152: 6 MB not copied
    rows = masked(rows, params, contexts)
    return rows, params, edits(rows, params, contexts)


def _by(kernel: Callable[..., np.ndarray]) -> Callable[..., Any]:
    """A kernel of a backend, called as `draw_rows` and `law_rows` are."""

    def call(rows: np.ndarray, params: Tokens[SamplingParams], changed: Edits, *u: Tokens[float]) -> Any:
        numbers = {name: [getattr(own, name) for own in params] for name in KERNEL_RULES}
        numbers["top_k"] = [min(k, rows.shape[1]) for k in numbers["top_k"]]  # Python's numbers may be larger than a kernel's
        rules = [np.array(numbers[name], kind) for name, kind in KERNEL_RULES.items()]
        return kernel(rows, *rules, *map(np.array, u), *changed)

    return call


def _refused(logits: np.ndarray, place: Place) -> NumericalError:
    """Why there is no token at this place."""
    best = int(np.argmax(logits[place.row]))  # a NaN counts as the largest
    largest, position = logits[place.row, best], place.position
    if np.isfinite(largest):
        return NumericalError(f"no token may be chosen at position {position}: all are banned; expected one that is allowed")
    return NumericalError(f"the largest logit of position {position} is {largest} (token id {best}); expected a finite number")
