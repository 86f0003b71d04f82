"""Checks of chapters 01 and 03: the right answer passes, the usual slips do not, and the verdict says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labcore.kernels.attention import Running
from labcore.lab.exercises.attention import check_merge, check_tiles
from labcore.lab.exercises.machine import check_crossover, check_floor


def merged(a: Running, b: Running) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    largest = np.maximum(a.largest, b.largest)
    x, y = np.exp(a.largest - largest), np.exp(b.largest - largest)
    return largest, a.total * x + b.total * y, a.weighted * x + b.weighted * y


def num_tiles(num_tokens: int, tile: int) -> int:
    blocks = -(-num_tokens // tile)
    return blocks * (blocks + 1) // 2


RIGHT: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (check_merge, merged),
    (check_merge, lambda a, b: Running(*merged(a, b))),
    (check_merge, lambda a, b: list(merged(b, a))),
    (check_tiles, num_tiles),
    (check_floor, lambda weights, kv, batch, context, bandwidth: (weights + batch * context * kv) / bandwidth),
    (check_crossover, lambda num, size, bandwidth, rate: size * rate // (2 * bandwidth) + 1),
]
WRONG: list[tuple[Callable[..., Any], Callable[..., Any], str]] = [
    (check_merge, lambda a, b: (a.largest, a.total + b.total, a.weighted + b.weighted), "is not what one walk"),
    (check_merge, lambda a, b: (merged(a, b)[0], a.total + b.total, merged(a, b)[2]), "total is not"),
    (check_merge, lambda a, b: (*merged(a, b)[:2], a.weighted + b.weighted), "weighted is not"),
    (check_merge, lambda a, b: merged(a, b)[0], "expected three arrays"),
    (check_merge, lambda a, b: (1, 2, 3), "largest is not"),
    (check_tiles, lambda num_tokens, tile: (-(-num_tokens // tile)) ** 2, "the walk met 3 tiles"),
    (check_tiles, lambda num_tokens, tile: num_tiles(num_tokens // tile * tile, tile), "num_tokens=9"),
    (check_floor, lambda weights, kv, batch, context, bandwidth: batch * (weights + context * kv) / bandwidth, "batch=8"),
    (check_floor, lambda weights, kv, batch, context, bandwidth: weights / bandwidth, "context=25"),
    (check_floor, lambda *numbers: float("nan"), "nan"),
    (check_crossover, lambda num, size, bandwidth, rate: -(-size * rate // (2 * bandwidth)), "step by step"),
    (check_crossover, lambda num, size, bandwidth, rate: size * rate // bandwidth + 1, "step by step"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_the_right_answer_passes(check: Callable[..., Any], answer: Callable[..., Any]) -> None:
    assert check(answer).right, check(answer)


@pytest.mark.parametrize(("check", "answer", "says"), WRONG)
def test_a_slip_is_turned_down(check: Callable[..., Any], answer: Callable[..., Any], says: str) -> None:
    verdict = check(answer)
    assert not verdict.right and says in verdict.sentence, verdict


@pytest.mark.parametrize("check", [check_merge, check_tiles, check_floor, check_crossover])
def test_an_open_answer_is_no_wrong_one(check: Callable[..., Any]) -> None:
    assert check(lambda *arguments: None).sentence.startswith("not answered yet")
