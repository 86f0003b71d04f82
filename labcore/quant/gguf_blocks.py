"""Block formats of GGUF files: 32 weights share one scale (and, in Q4_1, one minimum).

| format | block of 32 weights                     | bytes | weight          |
|--------|-----------------------------------------|-------|-----------------|
| Q8_0   | scale f16, 32 x int8                    | 34    | d * q           |
| Q4_0   | scale f16, 16 bytes of two nibbles      | 18    | d * (q - 8)     |
| Q4_1   | scale f16, minimum f16, 16 bytes        | 20    | d * q + m       |

Byte i of a nibble block holds weight i in its low half and weight i + 16 in its high half.
Source: ggml (block_q8_0, block_q4_0, block_q4_1). The arithmetic is float32, a product and then a sum, as there.

    >>> dequantize("Q4_1", data).dtype   # data: uint8 (rows, blocks x 20)
    dtype('float32')
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How many weights a block holds, in how many bytes."""

    elements: int
    bytes: int


FORMATS = {"Q8_0": BlockFormat(32, 34), "Q4_0": BlockFormat(32, 18), "Q4_1": BlockFormat(32, 20)}


def _half(raw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)  # (..., 2) bytes -> (..., 1)


def unpack(format: str, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split blocks into (quants, scale, minimum).

    data: uint8 (rows, blocks x bytes). Returns int8 quants (rows, blocks, 32) and float32 scale and minimum
    (rows, blocks, 1), such that weight = scale * quant + minimum.
    """
    blocks = data.reshape(data.shape[0], -1, FORMATS[format].bytes)
    scale = _half(blocks[..., :2])
    if format == "Q8_0":
        return blocks[..., 2:].view(np.int8), scale, np.zeros_like(scale)
    at = 4 if format == "Q4_1" else 2
    nibbles = np.concatenate([blocks[..., at:] & 15, blocks[..., at:] >> 4], axis=-1).view(np.int8)
    if format == "Q4_1":
        return nibbles, scale, _half(blocks[..., 2:4])
    return nibbles - np.int8(8), scale, np.zeros_like(scale)


def dequantize(format: str, data: np.ndarray) -> np.ndarray:
    """Expand blocks to float32 (rows, columns)."""
    quants, scale, minimum = unpack(format, data)
    weights = quants.astype(np.float32)
    weights *= scale
    if format == "Q4_1":
        weights += minimum
    return weights.reshape(data.shape[0], -1)
