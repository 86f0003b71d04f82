"""Checks of chapter 16: the right answer passes, the usual slips do not, and the verdict says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labcore.lab.exercises.speculation import check_kept, check_length, check_residual

Check = Callable[..., Any]


def agreeing(draft: list[int], chosen: list[int]) -> list[int]:
    right = next((i for i, guess in enumerate(draft) if guess != chosen[i]), len(draft))
    return chosen[: right + 1]


def cut(tokens: list[int], stops: list[int]) -> list[int]:
    return tokens[: next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))]


def best(acceptance: float, running: int, most: int = 8, first_of_equals: bool = True) -> int:
    def gain(k: int) -> float:
        return sum(acceptance**i for i in range(k + 1)) / (1 + 0.1 * (running * (k + 1) - 1))

    return max(range(most + 1) if first_of_equals else reversed(range(most + 1)), key=gain)


def left_over(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    left = np.maximum(p - q, 0)
    return left / left.sum() if left.any() else p


RIGHT: list[tuple[Check, Check]] = [
    (check_kept, lambda draft, chosen, stops: cut(agreeing(draft, chosen), stops)), (check_residual, left_over),
    (check_residual, lambda p, q: left_over(p, q).tolist()), (check_length, best),
]  # fmt: skip
WRONG: list[tuple[Check, Check, str]] = [
    (check_kept, lambda draft, chosen, stops: agreeing(draft, chosen), "a stop inside the run ends the answer there"),
    (check_kept, lambda draft, chosen, stops: cut(agreeing(draft, chosen), stops[:1]), "draft=[5, 3, 2]"),
    (check_kept, lambda draft, chosen, stops: cut(agreeing(draft, chosen)[:-1], stops), "the engine keeps (5, 6, 7, 8)"),
    (check_kept, lambda draft, chosen, stops: [*draft, chosen[-1]], "guesses that were not right are in it"),
    (check_kept, lambda draft, chosen, stops: cut(agreeing(draft, chosen), stops)[: len(draft)], "draft=[5, 6, 7]"),
    (check_residual, lambda p, q: np.maximum(p - q, 0), "they do not sum to 1"),
    (check_residual, lambda p, q: p, "the engine draws from [1.0, 0.0, 0.0]"),
    (check_residual, lambda p, q: np.abs(p - q) / np.abs(p - q).sum(), "the engine draws from"),
    (check_residual, lambda p, q: p[:1], "shape (1,); expected (3,)"),
    (check_residual, lambda p, q: "p - q", "returned str; expected 3 numbers"),
    (check_residual, lambda p, q: np.maximum(p - q, 0) / np.maximum(p - q, 0).max(), "they do not sum to 1"),
    (check_length, lambda acceptance, running: 8, "acceptance=0.6, running=1"),
    (check_length, lambda acceptance, running: best(acceptance, 1), "acceptance=0.9, running=16"),
    (check_length, lambda acceptance, running: best(acceptance, running, most=4), "the engine makes 8 guesses"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_the_right_answer_passes(check: Check, answer: Check) -> None:
    assert check(answer).right, check(answer)


@pytest.mark.parametrize(("check", "answer", "says"), WRONG)
def test_a_slip_does_not(check: Check, answer: Check, says: str) -> None:
    verdict = check(answer)
    assert not verdict.right and says in verdict.sentence, verdict


@pytest.mark.parametrize("check", [check_kept, check_residual, check_length])
def test_an_open_exercise_is_not_answered(check: Check) -> None:
    assert check(lambda *arguments: None).sentence.startswith("not answered yet")
