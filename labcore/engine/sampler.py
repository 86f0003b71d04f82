"""From logits to tokens: penalties, bias, temperature, top-k, top-p, min-p, and random numbers that belong to the request.

The rules apply in this order, each to a row; rows know nothing of each other. A random number is a function of (request seed,
sample index, absolute position) and of nothing else (see philox), so a seeded request gives the same tokens with any batch mates,
in any order of arrival, after any preemption. Everything here is float64: the law is exact to 1e-15. A backend may bring faster
`draw_rows` and `law_rows` with the same contract.

    >>> probabilities(np.array([1.0, 3.0, 3.0]), SamplingParams(top_k=1))
    array([0., 1., 0.])
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from labcore.core.errors import NumericalError
from labcore.engine.philox import uniform
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.sequence import Sequence

KERNEL_RULES = {"temperature": np.float64, "top_k": np.int64, "top_p": np.float64, "min_p": np.float64}
CHOICE, GUESS, COIN = range(3)  # streams of random numbers: the token itself, a draft model's guess at it, whether that stands


@dataclass(frozen=True, slots=True)
class Context:
    """What the rules know of a sequence besides its logits.

    banned: token ids that may not be chosen here. allowed: the only ones that may; None = all.
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

    @classmethod
    def behind(cls, sequence: Sequence, row: int, guesses: Tokens[int], stream: int = CHOICE, index: int | None = None) -> Place:
        """The place behind a sequence's known tokens and these guesses. index: of the answer, if not the sequence's own."""
        params, known, prompt = sequence.params, sequence.token_ids, sequence.num_prompt_tokens
        position, state = len(known) + len(guesses), sequence.state
        for token in guesses:
            state = sequence.constraint.next(state, token)
        context = Context(
            prompt=known[:prompt] if params.penalized else (),
            output=[*known[prompt:], *guesses] if params.penalized else (),
            banned=sequence.stop_token_ids if position - prompt < params.min_tokens else frozenset(),
            allowed=sequence.constraint.allowed(state),
        )
        u = 0.0 if params.greedy else uniform(sequence.seed, sequence.index if index is None else index, position, stream)
        return cls(row, params, context, u, position)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of one place: the chosen token's log-probability, its rank (1 = the most probable), and the most probable tokens."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]  # (token id, log-probability), the most probable first, ties by id


def edits(row: np.ndarray, params: SamplingParams, context: Context = NOTHING) -> dict[int, float]:
    """The logits that penalties, bias and bans change: token id -> new value, float64. row: (vocab_size,)."""
    changed: dict[int, float] = {}
    if params.penalized:
        seen = np.unique(np.array([*context.prompt, *context.output], np.int64))
        old = row[seen].astype(np.float64)
        new = np.where(old > 0, old / params.repetition_penalty, old * params.repetition_penalty)
        said, counts = np.unique(np.array(context.output, np.int64), return_counts=True)
        new[np.searchsorted(seen, said)] -= params.presence_penalty + params.frequency_penalty * counts
        changed = dict(zip(seen.tolist(), new.tolist(), strict=True))
    for token, bias in params.logit_bias.items():
        changed[token] = changed.get(token, float(row[token])) + bias
    return changed | dict.fromkeys(context.banned, -np.inf)


def allowed_row(row: np.ndarray, params: SamplingParams, context: Context = NOTHING) -> np.ndarray | None:
    """A copy of the row that has -inf wherever a token is not allowed; None if all are."""
    masked = None
    for allowed in (params.allowed_token_ids, context.allowed):
        if allowed is not None:
            kept, before = np.array(allowed, np.int64), row if masked is None else masked
            masked = np.full_like(row, -np.inf)
            masked[kept] = before[kept]
    return masked


def adjusted(logits: np.ndarray, params: SamplingParams, context: Context = NOTHING) -> np.ndarray:
    """The logits after penalties, bias and what is allowed: float64 (vocab_size,), -inf where nothing may be chosen."""
    row = logits.astype(np.float64)
    if changed := edits(row, params, context):
        row[list(changed)] = list(changed.values())
    masked = allowed_row(row, params, context)
    return row if masked is None else masked


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

def draw_rows(rows: np.ndarray, params: Tokens[SamplingParams], changed: Tokens[dict[int, float]], u: Tokens[float]) -> list[int]:
    """A token from each of these rows (num_rows, vocab_size); -1 where the largest logit is no finite number."""
    tokens = []
    for row, own, edit, number in zip(rows, params, changed, u, strict=True):
        law = _law(row, own, edit)
        tokens.append(-1 if law is None else int(np.argmax(law)) if own.greedy else draw(law, number))
    return tokens


def law_rows(rows: np.ndarray, params: Tokens[SamplingParams], changed: Tokens[dict[int, float]]) -> list[np.ndarray | None]:
    """The law of each of these rows, float64 (vocab_size,); None where the largest logit is no finite number."""
    return [_law(row, own, edit) for row, own, edit in zip(rows, params, changed, strict=True)]


def _law(row: np.ndarray, params: SamplingParams, changed: dict[int, float]) -> np.ndarray | None:
    scaled = row.astype(np.float64)
    if changed:
        scaled[list(changed)] = list(changed.values())
    return law_of(scaled, params) if np.isfinite(scaled.max()) else None


class Sampler:
    """Chooses all tokens of a step at once. backend: may bring `draw` and `law` for rows of float32 (see NativeBackend)."""

    def __init__(self, backend: Any = None) -> None:
        native = hasattr(backend, "draw")
        self._draw_rows = _by(backend.draw) if native else draw_rows
        self._law_rows = _by(backend.law) if native else law_rows

    def choose(self, logits: np.ndarray, places: Tokens[Place]) -> list[int | NumericalError]:
        """A token for each place, or why there is none. logits: (num_rows, vocab_size)."""
        best = np.argmax(logits, axis=-1).tolist()  # a NaN counts as the largest
        chosen: list[int | NumericalError] = [_checked(best[place.row], logits, place) for place in places]
        ruled = [
            i for i, token in enumerate(chosen)
            if not (isinstance(token, NumericalError) or (places[i].params.plain_greedy and not places[i].context.rules))
        ]  # fmt: skip
        if ruled:
            own = [places[i] for i in ruled]
            drawn = self._draw_rows(*self._ruled(logits, own), [place.u for place in own])
            for i, token in zip(ruled, drawn, strict=True):
                chosen[i] = token if token >= 0 else _nothing_left(places[i])
        return chosen

    def laws(self, logits: np.ndarray, places: Tokens[Place]) -> list[np.ndarray | NumericalError]:
        """The law that each place's token is to be drawn from, or why there is none."""
        best = np.argmax(logits, axis=-1).tolist()
        laws = []
        for place, law in zip(places, self._law_rows(*self._ruled(logits, places)), strict=True):
            checked = _checked(best[place.row], logits, place)
            laws.append(checked if isinstance(checked, NumericalError) else _nothing_left(place) if law is None else law)
        return laws

    def guesses(self, logits: np.ndarray, places: Tokens[Place]) -> list[tuple[int, np.ndarray | None]]:
        """A draft model's guess at each place, and the law it was drawn from; none where it is the best token."""
        guesses: list[tuple[int, np.ndarray | None]] = []
        for place, law in zip(places, self.laws(logits, places), strict=True):
            if isinstance(law, NumericalError):  # guesses need not be good ones
                law = np.zeros(logits.shape[-1])
                law[0] = 1.0
            greedy = place.params.greedy
            guesses.append((int(np.argmax(law)), None) if greedy else (draw(law, place.u), law))
        return guesses

    def _ruled(
        self, logits: np.ndarray, places: Tokens[Place]
    ) -> tuple[np.ndarray, list[SamplingParams], list[dict[int, float]]]:
        order = [place.row for place in places]
        rows = logits if order == list(range(len(logits))) else logits[order]  # at 32 rows of 49,152: 6 MB not copied
        changed, masks = [], {}
        for i, place in enumerate(places):
            edit, masked = edits(rows[i], place.params, place.context), allowed_row(rows[i], place.params, place.context)
            if masked is not None:
                edit = {token: value for token, value in edit.items() if masked[token] > -np.inf}
                masks[i] = masked
            changed.append(edit)
        if masks:
            rows = rows.copy() if rows is logits else rows
            rows[list(masks)] = list(masks.values())
        return rows, [place.params for place in places], changed


def _by(kernel: Callable[..., np.ndarray]) -> Callable[..., Any]:
    """A kernel of a backend, called as `draw_rows` and `law_rows` are."""

    def call(rows: np.ndarray, params: Tokens[SamplingParams], changed: Tokens[dict[int, float]], *u: Tokens[float]) -> Any:
        rules = [np.array([getattr(own, name) for own in params], kind) for name, kind in KERNEL_RULES.items()]
        starts = np.cumsum([0, *map(len, changed)])
        ids = np.fromiter((token for edit in changed for token in edit), np.int64, starts[-1])
        values = np.fromiter((value for edit in changed for value in edit.values()), np.float64, starts[-1])
        return kernel(rows, *rules, *map(np.array, u), starts, ids, values)

    return call


def _checked(best: int, logits: np.ndarray, place: Place) -> int | NumericalError:
    largest = logits[place.row, best]
    if np.isfinite(largest):
        return best
    where = f"the largest logit of position {place.position}"
    return NumericalError(f"{where} is {largest} (token id {best}); expected a finite number")


def _nothing_left(place: Place) -> NumericalError:
    return NumericalError(f"no token may be chosen at position {place.position}: all are banned; expected one that is allowed")


def logprobs_of(logits: np.ndarray, token_id: int, num_top: int) -> Logprobs:
    """Of the model's own law, before any rule."""
    row = logits.astype(np.float64)
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
