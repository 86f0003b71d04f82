"""Checks of chapter 05: the quantizers and the integer reference say what is right.

>>> check_bytes(lambda format, rows, columns: None)
not answered yet: your function returned None for format='Q8_0', rows=4, columns=64
"""

from __future__ import annotations

import numpy as np

from labcore.kernels.integer_reference import linear_blocks
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike
from labcore.quant.gguf_blocks import FORMATS, unpack
from labcore.quant.int8 import quantize_int8, quantize_rows
from labcore.quant.quantize import quantize
from labcore.quant.quantized_tensor import QuantizedTensor


def check_bytes(answer: Answer) -> Verdict:
    """answer(format, rows, columns): bytes of a matrix; int8 has a float32 scale for each row."""
    cases = [(format, rows, columns) for rows, columns in [(4, 64), (576, 1536), (1, 32)] for format in (*FORMATS, "int8")]
    return judge(answer, named("format, rows, columns", *cases), unlike(_bytes, "the tensor has", "bytes"), "the tensors")


def check_row(answer: Answer) -> Verdict:
    """answer(x): quants and float32 scale of one row. Zeros, and a row below 2^-100, have scale 0 and quants 0."""
    rows = [[1, -2, 0.5, 5], [127, 0.5, 1.5, -2.5], [0, 0, 0], [1e-8, -3e-8], [1e-40, 0], [3e38, -1e38]]
    return judge(answer, {f"x={row}": (np.array(row, np.float32),) for row in rows}, unlike(_row, "labcore says"), "labcore")


def check_block(answer: Answer) -> Verdict:
    """answer(quants, scale, minimum, x): the product of a Q4_1 block with 32 activations, which become int8."""
    random = np.random.default_rng(5)
    cases = {f"block {i}": _block(random, size) for i, size in enumerate((1, 1e-3, 1e4))}
    return judge(answer, cases, _off, "the integer reference")


def _bytes(format: str, rows: int, columns: int) -> int:
    zeros = np.zeros((rows, columns), np.float32)
    return (quantize_int8(zeros) if format == "int8" else quantize(format, zeros)).nbytes


def _row(x: np.ndarray) -> tuple[tuple[int, ...], float]:
    quants, scale = quantize_rows(x)
    return tuple(quants.tolist()), float(scale)


def _block(random: np.random.Generator, size: float) -> tuple[np.ndarray, float, float, np.ndarray]:
    quants, scale, minimum = unpack("Q4_1", quantize("Q4_1", random.standard_normal((1, 32))).data)
    return quants.ravel(), scale.item(), minimum.item(), (size * (1 + random.standard_normal(32))).astype(np.float32)


def _off(got: object, quants: np.ndarray, scale: float, minimum: float, x: np.ndarray) -> str:
    low, high = quants.astype(np.uint8).reshape(2, 16)
    data = np.concatenate([np.array([scale, minimum], np.float16).view(np.uint8), low | high << np.uint8(4)])
    expected = linear_blocks(x[None], QuantizedTensor("Q4_1", (1, 32), data[None])).item()
    if isinstance(got, int | float | np.number) and abs(got - expected) <= 1e-5 * abs(expected):
        return ""
    dense = x @ (scale * quants + minimum)
    return f"your function says {got!r:.60}, the integer reference {expected:.6g}, and float32 weights and x {dense:.6g}"
