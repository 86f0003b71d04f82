"""Checks of chapter 07's exercises: the right answer passes, and each usual slip is told by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labcore.lab.exercises.text import check_bf16, check_places, check_whole
from labcore.lab.exercises.verdict import Verdict

CHECKS = (check_places, check_bf16, check_whole)
NOTED: tuple[dict[str, Any], ...] = ({}, {"__metadata__": None})


def header(data: bytes) -> tuple[int, dict[str, Any]]:
    start = 8 + int.from_bytes(data[:8], "little")
    found = json.loads(data[8:start])
    found.pop("__metadata__", None)
    return start, found


def places(data: bytes) -> dict[str, list[int]]:
    start, found = header(data)
    return {name: [start + at for at in entry["data_offsets"]] for name, entry in found.items()}


def from_the_header(data: bytes) -> dict[str, list[int]]:
    return {name: [begin - 8, end - 8] for name, (begin, end) in places(data).items()}


def with_the_notes(data: bytes) -> dict[str, Any]:
    start = 8 + int.from_bytes(data[:8], "little")
    found = json.loads(data[8:start])
    return {name: [start + at for at in entry["data_offsets"]] for name, entry in found.items()}


def bf16(bits: int) -> np.uint32:
    return np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def whole(data: bytes) -> int:
    return len(data.decode(errors="ignore").encode())


@pytest.mark.parametrize(("check", "answer"), [(check_places, places), (check_bf16, bf16), (check_whole, whole)])
def test_the_right_answer_passes(check: Callable[..., Verdict], answer: Callable[..., Any]) -> None:
    verdict = check(answer)
    assert verdict.right and repr(verdict).startswith("right: ")


@pytest.mark.parametrize("check", CHECKS)
def test_no_answer_and_one_that_raises_are_told_apart(check: Callable[..., Verdict]) -> None:
    assert repr(check(lambda _: None)).startswith("not answered yet: your function returned None for ")
    verdict = check(lambda _: 1 / 0)
    assert not verdict.right and verdict.sentence.endswith("your function raised ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("check", "answer", "told"),
    [
        (check_places, lambda data: {n: e["data_offsets"] for n, e in header(data)[1].items()}, "of the data, not of the file"),
        (check_places, from_the_header, "from the header; before it stand 8 bytes"),
        (check_places, with_the_notes, "raised KeyError: 'data_offsets': `__metadata__` holds notes, and is no tensor"),
        (check_places, lambda data: places(data) | NOTED[b"__metadata__" in data], "`__metadata__` holds notes"),
        (
            check_places,
            lambda data: dict[str, int]()["data_offsets"],
            "one tensor your function raised KeyError: 'data_offsets'$",
        ),
        (check_places, lambda data: sorted(places(data)), r"says \('a',\)"),
        (check_places, lambda data: dict.fromkeys(places(data), np.zeros(2)), "labcore's reader"),
        (check_bf16, lambda bits: bits >> 16, "cut off, not rounded"),
        (check_bf16, lambda bits: bits >> 16, "says 0x3eaa, labcore's writer 0x3eab"),
        (check_bf16, lambda bits: (bits + 0x8000) >> 16, "a tie goes to the even number, not always up"),
        (check_bf16, lambda bits: (bits + 0x7FFF) >> 16, "a tie goes to the even number, not always down"),
        (check_bf16, lambda bits: float(bf16(bits)), "says 16256.0, labcore's writer 0x3f80, a whole number"),
        (check_bf16, lambda bits: 7, "says 0x0007, labcore's writer 0x3f80$"),
        (check_whole, len, "the last character is not complete"),
        (check_whole, lambda data: len(data.decode(errors="ignore")), "says 1, labcore's decoder 2: that is how many characters"),
        (check_whole, lambda data: max(0, len(data) - 3), "says 0, labcore's decoder 3"),
    ],
)
def test_a_slip_is_told(check: Callable[..., Verdict], answer: Callable[..., Any], told: str) -> None:
    verdict = check(answer)
    assert not verdict.right
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(verdict.sentence)
