"""Checks of chapter 02's exercises: the right answer passes, and each usual slip is told by its name."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from labcore.lab.exercises.doors import check_contiguous, check_header

MACHINES = {3: "x86", 22: "s390x", 62: "x86_64", 183: "aarch64"}
Numbers = tuple[int, ...]


def contiguous(shape: Numbers, strides: Numbers, itemsize: int) -> bool:
    steps = [itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return 0 in shape or all(n == 1 or got == step for n, got, step in zip(shape, strides, steps, strict=True))


def without_length_one(shape: Numbers, strides: Numbers, itemsize: int) -> bool:
    return strides == tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def without_empty(shape: Numbers, strides: Numbers, itemsize: int) -> bool:
    return 0 not in shape and contiguous(shape, strides, itemsize)


def test_the_right_answers_pass() -> None:
    assert check_contiguous(contiguous).right
    assert check_header(lambda data: MACHINES[int.from_bytes(data[18:20], ["", "little", "big"][data[5]])]).right


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            without_length_one,
            "for shape=(1, 8), strides=(999, 4), itemsize=4 your function says False, numpy True: along an axis of",
        ),
        (
            without_empty,
            "for shape=(0, 3), strides=(7, 7), itemsize=4 your function says False, numpy True: there are no numbers",
        ),
        (
            lambda shape, strides, itemsize: True,
            "for shape=(4, 8), strides=(4, 16), itemsize=4 your function says True, numpy False",
        ),
    ],
)
def test_slips_are_named(answer: Callable[..., bool], words: str) -> None:
    verdict = check_contiguous(answer)
    assert not verdict.right and verdict.sentence.startswith(f"wrong: {words}")


def test_the_order_of_the_bytes_matters() -> None:
    verdict = check_header(lambda data: MACHINES.get(int.from_bytes(data[18:20], "little"), "?"))
    assert verdict.sentence.startswith(
        "wrong: for the first bytes of a file for s390x your function says '?', the doctor 's390x'"
    )


@pytest.mark.parametrize("check", [check_contiguous, check_header])
def test_an_open_exercise_says_so(check: Callable) -> None:
    assert check(lambda *arguments: None).sentence.startswith("not answered yet")
