"""Checks of chapter 08's exercises: the right answer passes, and each usual slip is told by its name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labcore.engine.philox import uniform
from labcore.lab.exercises.sampling import check_allowed, check_place, check_top_p

CHECKS = (check_top_p, check_place, check_allowed)
SHARED = np.random.default_rng(0)


def top_p(law: list[float], p: float, inclusive: bool = False, last_first: bool = False) -> list[int]:
    mass, ids = 0.0, []
    for token in sorted(range(len(law)), key=lambda token: (-law[token], -token if last_first else token)):
        if (mass + law[token] <= p) if inclusive else (mass < p):
            ids.append(token)
        mass += law[token]
    return sorted(ids)


def from_below(law: list[float], p: float) -> list[int]:
    order = np.argsort(law)
    return sorted(order[np.cumsum(np.array(law, np.float32)[order]) > np.float32(1 - p)].tolist())


def hashed(seed: int, position: int) -> float:
    return int.from_bytes(hashlib.sha256(f"{seed},{position}".encode()).digest()[:6]) / 2**48


def allowed(pieces: list[bytes], end: int, choices: tuple[str, ...], said: str, ends: bool = True) -> list[int]:
    whole = [choice.encode() for choice in choices]
    ids = {i for i, piece in enumerate(pieces) if piece and any(c.startswith(said.encode() + piece) for c in whole)}
    return sorted(ids | ({end} if ends and said in choices else set()))


RIGHT: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (check_top_p, top_p), (check_top_p, lambda law, p: np.array(top_p(law, p))), (check_place, hashed),
    (check_place, lambda seed, position: uniform(seed, 0, position)),
    (check_place, lambda seed, position: np.random.default_rng([seed, position]).random()), (check_allowed, allowed),
]  # fmt: skip
WRONG: list[tuple[Callable[..., Any], Callable[..., Any], str]] = [
    (check_top_p, lambda law, p: top_p(law, p, inclusive=True), "the token that crosses p stays; ask for the mass before it"),
    (check_top_p, lambda law, p: top_p(law, p, last_first=True), "of equal tokens the lower id stays"),
    (check_top_p, from_below, "law=[0.5, 0.41, 0.09], p=1e-08 your function says (), the sampler keeps (0,): nothing is left"),
    (check_top_p, lambda law, p: list(range(len(law))), "these are too many"),
    (check_top_p, lambda law, p: top_p(law, p)[::-1], "the ids stand in order"),
    (check_top_p, lambda law, p: [law[i] for i in top_p(law, p)], "expected ids, from 0"),
    (check_top_p, lambda law, p: 3, "expected ids, from 0"),
    (check_place, lambda seed, position: SHARED.random(), "it must not matter who asked before"),
    (check_place, lambda seed, position: np.random.default_rng(seed).random(), "the position must count"),
    (check_place, lambda seed, position: np.random.default_rng(position).random(), "two seeds have the same numbers"),
    (check_place, lambda seed, position: hashed(0, seed + position), "at position 8 has the number of seed 4 at 7"),
    (check_place, lambda seed, position: hashed(seed, position) ** 2, "not evenly"),
    (check_place, lambda seed, position: 1.0, "expected a number in [0, 1)"),
    (check_place, lambda seed, position: float("nan"), "expected a number in [0, 1)"),
    (check_place, lambda seed, position: "x", "your function raised ValueError"),
    (check_allowed, lambda *asked: allowed(*asked, ends=False), "the token that ends, 257, may come where the answer is one"),
    (check_allowed, lambda *asked: [i for i in allowed(*asked) if i < 264], "a piece of several letters may come, too"),
    (check_allowed, lambda *asked: [*allowed(*asked), 0], "does not lead to any of them: b'\\x00' (id 0)"),
    (check_allowed, lambda *asked: allowed(*asked)[::-1], "each id once, and in order"),
    (check_allowed, lambda *asked: "no", "expected ids"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_the_right_answer_passes(check: Callable[..., Any], answer: Callable[..., Any]) -> None:
    verdict = check(answer)
    assert verdict.right and verdict.sentence.startswith("right: "), verdict


@pytest.mark.parametrize("check", CHECKS)
def test_no_answer_and_one_that_raises_are_told_apart(check: Callable[..., Any]) -> None:
    assert check(lambda *asked: None).sentence.startswith("not answered yet: your function returned None for ")
    verdict = check(lambda *asked: 1 / 0)
    assert not verdict.right and verdict.sentence.endswith("your function raised ZeroDivisionError: division by zero")


@pytest.mark.parametrize(("check", "answer", "told"), WRONG)
def test_a_slip_is_told(check: Callable[..., Any], answer: Callable[..., Any], told: str) -> None:
    verdict = check(answer)
    assert not verdict.right
    assert re.search(re.escape(told), verdict.sentence), verdict
