"""Checks of chapter 08: which tokens top-p keeps, random numbers that belong to their place, and what a choice allows.

>>> check_top_p(lambda law, p: None).right
False
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labcore.engine.constraint import constraint_of
from labcore.engine.sampler import probabilities
from labcore.engine.sampling_params import SamplingParams
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike
from labcore.loaders.tokenizer import LabTokenizer

Place = tuple[int, int]  # seed, position


def check_top_p(answer: Answer) -> Verdict:
    """answer(law, p): the ids that top-p keeps, in order. law: a list of probabilities."""
    crosses = [0.5, 0.41, 0.09]
    cases = [
        (crosses, 0.9), (crosses, 0.95), (crosses, 1e-8), (crosses, 1.0), ([0.09, 0.5, 0.41], 0.9), ([0.25] * 4, 0.5),
        ([0.125, 0.25, 0.25, 0.25, 0.125], 0.6), ([0.97, 0.01, 0.01, 0.01], 1 - 1e-7),
    ]  # fmt: skip

    def slip(got: object, law: list[float], p: float) -> str:
        right = set(_kept(law, p))
        if not isinstance(got, tuple) or not set(got) <= set(range(len(law))):
            return ": expected ids, from 0"
        if not got:
            return ": nothing is left to draw from"
        if set(got) == right:
            return ": the ids stand in order"
        if len(got) == len(right):
            return ": of equal tokens the lower id stays" if {law[i] for i in got} == {law[i] for i in right} else ""
        return ": the token that crosses p stays; ask for the mass before it" if set(got) < right else ": these are too many"

    return judge(answer, named("law, p", *cases), unlike(_kept, "the sampler keeps", slip=slip), "the sampler")


def _kept(law: list[float], p: float) -> tuple[int, ...]:
    return tuple(np.flatnonzero(probabilities(np.log(law), SamplingParams(top_p=p))).tolist())


SEEDS, POSITIONS = (3, 4), range(40)
PLACES: list[Place] = [(seed, position) for seed in SEEDS for position in POSITIONS]


def check_place(answer: Answer) -> Verdict:
    """answer(seed, position): a random number in [0, 1), the same for a place whoever asked before."""
    mixed = [PLACES[i] for i in np.random.default_rng(0).permutation(len(PLACES))]
    cases: dict[str, tuple[list[Place]]] = {
        "two requests, one after the other": (PLACES,),
        "both in one batch": (sorted(PLACES, key=lambda place: place[1]),),
        "places in any order": (mixed,),
        "a preempted request that goes on": (PLACES[30:40],),
        "a mate without a seed of its own": ([place for pair in zip(PLACES, [(99, 0)] * 80, strict=True) for place in pair],),
        "2,000 places": ([(5, position) for position in range(2000)],),
    }
    first: dict[Place, float] = {}

    def asked(places: list[Place]) -> list[float] | None:
        numbers = [answer(*place) for place in places]
        return None if None in numbers else [float(u) for u in numbers]  # type: ignore[arg-type]

    def fault(got: list[float], places: list[Place]) -> str:
        for place, u in zip(places, got, strict=True):
            if not 0 <= u < 1:
                return f"your function says {u!r} at (seed, position) {place}; expected a number in [0, 1)"
            if first.setdefault(place, u) != u:
                return f"(seed, position) {place} had {first[place]:.4f} and now has {u:.4f}: it must not matter who asked before"
        return _not_random(first, places, got)

    return judge(asked, cases, fault, "what a place is promised")


def _not_random(first: dict[Place, float], places: Sequence[Place], got: Sequence[float]) -> str:
    """What is wrong with numbers that belong to their places."""
    for seed in SEEDS:
        if len({first[seed, position] for position in POSITIONS}) < len(POSITIONS):
            return f"seed {seed} has one number at several positions: the position must count"
    if all(first[SEEDS[0], position] == first[SEEDS[1], position] for position in POSITIONS):
        return "two seeds have the same numbers: the seed must count"
    if first[SEEDS[0], 8] == first[SEEDS[1], 7]:
        return f"seed {SEEDS[0]} at position 8 has the number of seed {SEEDS[1]} at 7: one request is the other, a token later"
    counts = np.bincount((np.array(got) * 10).astype(int), minlength=10)
    expected = len(places) / 10
    if len(places) == 2000 and ((counts - expected) ** 2 / expected).sum() > 33.7:  # passed once in 10,000: 9 degrees
        return f"the tenths of [0, 1) are met {counts.tolist()} times: not evenly"
    return ""


def check_allowed(answer: Answer) -> Verdict:
    """answer(pieces, end, choices, said): the ids that may follow, in order. pieces: bytes by id; end: of the token that ends."""
    tokenizer = LabTokenizer()
    pieces = [b"" if tokenizer.is_special(i) else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    end = min(tokenizer.eos_token_ids)

    def allowed(choices: tuple[str, ...], said: str) -> tuple[int, ...]:
        constraint = constraint_of(SamplingParams(choices=choices), tokenizer)
        state = constraint.start
        for token in said.encode():  # the first 256 ids are the bytes
            state = constraint.next(state, token)
        found = constraint.allowed(state)
        assert found is not None
        return tuple(found.tolist())

    def slip(got: object, choices: tuple[str, ...], said: str) -> str:
        if not isinstance(got, tuple) or not all(isinstance(i, int) and 0 <= i < len(pieces) for i in got):
            return ": expected ids"
        if (end in got) != (said in choices):
            return f": the token that ends, {end}, may come where the answer is one of the choices, and only there"
        missing, wrong = set(allowed(choices, said)) - set(got), set(got) - set(allowed(choices, said))
        for what, ids in (("a piece of several letters may come, too", missing), ("does not lead to any of them", wrong)):
            if ids:
                return f": {what}: {pieces[min(ids)]!r} (id {min(ids)})"
        return ": each id once, and in order"

    answers = ("yes", "no")
    cases = [(answers, ""), (answers, "n"), (answers, "no"), (("there", "then"), "the"), (("än", "as"), "")]
    return judge(
        lambda choices, said: answer(pieces, end, choices, said), named("choices, said", *cases),
        unlike(allowed, "the engine allows", slip=slip), "the engine",
    )  # fmt: skip
