"""Checks of chapter 05's exercises: the right answer passes, and a wrong one is told what is wrong with it."""

from __future__ import annotations

import numpy as np
import pytest

from labcore.lab.exercises.quantization import check_block, check_bytes, check_row

BYTES = {"Q8_0": (34, 32), "Q4_0": (18, 32), "Q4_1": (20, 32)}


def matrix_bytes(format: str, rows: int, columns: int) -> int:
    if format == "int8":
        return rows * (columns + 4)
    block, size = BYTES[format]
    return rows * columns // size * block


def quantize_row(x: np.ndarray) -> tuple[np.ndarray, np.float32]:
    amax = np.abs(x).max()
    if amax < 2.0**-100:
        return np.zeros(len(x), np.int8), np.float32(0)
    return np.rint(x * (np.float32(127) / amax)).astype(np.int8), amax / np.float32(127)


def block_product(quants: np.ndarray, scale: float, minimum: float, x: np.ndarray) -> float:
    q, d = quantize_row(x)
    return float(d) * (scale * int(np.dot(quants.astype(int), q.astype(int))) + minimum * int(q.sum(dtype=int)))


def test_the_right_answers_are_right() -> None:
    for check, answer in ((check_bytes, matrix_bytes), (check_row, quantize_row), (check_block, block_product)):
        assert check(answer).right, check(answer)  # type: ignore[operator]


@pytest.mark.parametrize("check", [check_bytes, check_row, check_block])
def test_no_answer_and_an_error_are_told(check) -> None:  # type: ignore[no-untyped-def]
    assert repr(check(lambda *args: None)).startswith("not answered yet: your function returned None for ")
    assert "raised ZeroDivisionError" in check(lambda *args: 1 // 0).sentence
    for answer in ("?", [1, 2], np.zeros((2, 3)), object(), np.nan, np.str_("x")):
        assert not check(lambda *args, answer=answer: answer).right


@pytest.mark.parametrize(
    ("check", "answer", "told"),
    [
        (check_bytes, lambda format, r, c: r * c, "columns=64 your function says 256, the tensor has 272"),
        (check_bytes, lambda format, r, c: matrix_bytes(format, r, c) - (4 * r if format == "int8" else 0), "format='int8'"),
        (check_row, lambda x: (np.rint(x / (np.abs(x).max() / 127 or 1)), np.abs(x).max() / np.float32(127)), "for x=[1e-40, 0]"),
        (check_row, lambda x: (np.floor(x * (127 / max(np.abs(x).max(), 1e-30)) + 0.5), 0), "for x=[1, -2, 0.5, 5]"),
        (check_block, lambda q, d, m, x: float(x @ (d * q + m)), "for block 0 your function says "),
        (check_block, lambda q, d, m, x: block_product(q, d, 0.0, x), "for block 0 your function says "),
    ],
)  # fmt: skip
def test_a_slip_is_found(check, answer, told: str) -> None:  # type: ignore[no-untyped-def]
    verdict = check(answer)
    assert not verdict.right and told in verdict.sentence
