"""A float32 matrix into a block format, with the bytes that ggml's own reference quantizer gives.

Each block of 32 weights is quantized by itself. Q8_0 is symmetric: d = amax / 127. Q4_0 divides by the extreme weight
with its sign, d = max / -8, so that one end of the 16 levels is met exactly. Q4_1 is a grid from the least weight to the
largest: d = (max - min) / 15, m = min. The quants are made with the scale in float32; what is stored is its float16.

Limits: no importance matrix and no search for a better scale. A block so small that its scale is 0 in float16 comes back as
zeros (in Q4_1, as its minimum).
Source: ggml (quantize_row_q8_0_ref, quantize_row_q4_0_ref, quantize_row_q4_1_ref).

    >>> quantize("Q8_0", np.ones((4, 64), np.float32)).nbytes   # 4 rows x 2 blocks x 34 bytes
    272
"""

from __future__ import annotations

import numpy as np

from labcore.core.errors import InvalidCheckpoint
from labcore.quant.gguf_blocks import FORMATS
from labcore.quant.int8 import check_finite
from labcore.quant.quantized_tensor import QuantizedTensor


def quantize(format: str, weight: np.ndarray) -> QuantizedTensor:
    """Quantize a matrix (rows, columns) to Q8_0, Q4_0 or Q4_1.

    InvalidCheckpoint: an unknown format, columns that are no multiple of 32, a row that is not finite, or so large that
    float16 cannot hold its scale. ShapeError: not a matrix.
    """
    if format not in FORMATS:
        raise InvalidCheckpoint(f"unknown block format {format!r}; known: {', '.join(FORMATS)}")
    weight = check_finite(weight)
    (rows, columns), size = weight.shape, FORMATS[format].elements
    if columns % size:
        raise InvalidCheckpoint(f"{format} needs columns in multiples of {size}; got {columns}")
    blocks = weight.reshape(rows, -1, size)
    with np.errstate(over="ignore", invalid="ignore"):  # a scale that overflows is refused below
        header, quants = _q8_0(blocks) if format == "Q8_0" else _q4_0(blocks) if format == "Q4_0" else _q4_1(blocks)
    finite = np.isfinite(header).all(axis=(1, 2))
    if not finite.all():
        raise InvalidCheckpoint(
            f"row {int(np.argmin(finite))} holds {np.abs(weight[np.argmin(finite)]).max():.6g}, "
            f"for which {format} has no scale: it is a float16; choose another format"
        )
    data = np.concatenate([header.view(np.uint8), quants], axis=-1)  # (rows, blocks, bytes)
    return QuantizedTensor(format, weight.shape, data.reshape(rows, -1))


def _inverse(scale: np.ndarray) -> np.ndarray:
    """1 / scale; 0 where there is none, or where it would be infinite (ggml then multiplies by infinity)."""
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _q8_0(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    steps = np.abs(blocks * _inverse(scale))
    quants = np.floor(steps)
    quants += steps - quants >= 0.5  # ties away from zero, as C's roundf
    return scale.astype(np.float16), np.copysign(quants, blocks).astype(np.int8).view(np.uint8)


def _q4_0(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    scale = extreme / np.float32(-8)
    return scale.astype(np.float16), _nibbles(blocks * _inverse(scale) + np.float32(8.5))


def _q4_1(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    least, largest = blocks.min(axis=-1, keepdims=True), blocks.max(axis=-1, keepdims=True)
    scale = (largest - least) / np.float32(15)
    header = np.concatenate([scale, least], axis=-1).astype(np.float16)
    return header, _nibbles((blocks - least) * _inverse(scale) + np.float32(0.5))


def _nibbles(levels: np.ndarray) -> np.ndarray:
    """Levels (rows, blocks, 32), cut to 0..15 -> bytes (rows, blocks, 16): the first half of a block lies in the low nibbles."""
    low, high = np.split(np.clip(levels, 0, 15).astype(np.uint8), 2, axis=-1)
    return low | (high << np.uint8(4))
