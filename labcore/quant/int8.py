"""Symmetric int8: a row of numbers as whole numbers from -127 to 127 and one float32 scale.

Of a weight matrix the rows are the output channels. Activations and KV use the same arithmetic (`quantize_rows`), so
there is one rule for what a row becomes: scale = amax / 127, q = x x (127 / amax) rounded to the nearest, ties to even.
A row of zeros, or so small (below 2^-100) that 127 / amax could overflow, has scale 0 and quants 0: it comes back as
exact zeros, never as 0 / 0. A row with a NaN or an infinity has scale NaN, so that the fault stays visible.

Limits: one scale for a whole row; an outlier in it costs all the others their precision (`gguf_blocks` has one per 32).

    >>> quantize_int8(np.float32([[0.5, -1.0], [0.0, 0.0]])).data
    array([[  64, -127],
           [   0,    0]], dtype=int8)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labcore.core.errors import InvalidCheckpoint, ShapeError

SCALES = ".scales"  # in a file, after a matrix's name
INT8_METHOD = {"quant_method": "labcore_int8", "bits": 8, "scheme": "symmetric", "granularity": "channel"}  # in a config.json
INT8_PREFIX = "labcore_int8_"  # there, before the model_type
LEVELS = np.float32(127)
TINY = np.float32(2.0**-100)  # below it 127 / amax could overflow, and amax / 127 be subnormal


def quantize_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 (..., K) -> int8 quants (..., K) and float32 scales (...), such that x is about scale * quants."""
    x = np.asarray(x, np.float32)
    amax = np.abs(x).max(axis=-1, initial=0)
    good = (amax >= TINY) & np.isfinite(amax)
    inverse = LEVELS / np.where(good, amax, 1)
    # float32 x float32 stays within 127 x (1 + 2^-23), and rint brings that back to 127
    quants = np.rint(np.where(good[..., None], x, 0) * inverse[..., None]).astype(np.int8)
    scales = np.where(good, amax / LEVELS, np.where(np.isfinite(amax), np.float32(0), np.float32(np.nan)))
    return quants, scales


@dataclass(frozen=True, slots=True)
class Int8Tensor:
    """A matrix (rows, columns) of int8 with a scale per row: weight[n] = scales[n] * data[n].

    shape (N, K); data int8 (N, K), C-contiguous, maybe memory-mapped; scales float32 (N,).
    """

    shape: tuple[int, int]
    data: np.ndarray
    scales: np.ndarray

    def __post_init__(self) -> None:
        for what, array, dtype, shape in (
            ("data", self.data, np.int8, self.shape),
            ("scales", self.scales, np.float32, self.shape[:1]),
        ):
            if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
                raise InvalidCheckpoint(
                    f"int8 {self.shape}: {what} is {array.dtype} {array.shape} of strides {array.strides}; "
                    f"expected {np.dtype(dtype)} {shape}, C-contiguous"
                )

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.scales.nbytes

    def dequantize(self) -> np.ndarray:
        """The matrix in float32, (rows, columns)."""
        return self.data * self.scales[:, None]


def check_finite(weight: np.ndarray) -> np.ndarray:
    """The matrix as float32 (rows, columns). ShapeError: no matrix; InvalidCheckpoint: a NaN or an infinity, by its row."""
    weight = np.asarray(weight, np.float32)
    if weight.ndim != 2:
        raise ShapeError(f"weight has shape {weight.shape}; expected (rows, columns)")
    finite = np.isfinite(weight).all(axis=1)
    if not finite.all():
        raise InvalidCheckpoint(f"row {int(np.argmin(finite))} holds a NaN or an infinity; only finite weights can be quantized")
    return weight


def quantize_int8(weight: np.ndarray) -> Int8Tensor:
    """Quantize a matrix (N, K) with one scale per output channel. InvalidCheckpoint: a row is not finite."""
    data, scales = quantize_rows(check_finite(weight))
    return Int8Tensor(data.shape, data, scales)
