"""A matrix in a block format, as it lies in the file.

>>> QuantizedTensor("Q8_0", (4, 64), data).nbytes   # 4 rows x 2 blocks x 34 bytes
272
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labcore.core.errors import InvalidCheckpoint
from labcore.quant.gguf_blocks import FORMATS, dequantize


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """`shape` is (rows, columns); `data` is uint8 (rows, blocks per row x bytes per block), C-contiguous, maybe memory-mapped."""

    format: str
    shape: tuple[int, int]
    data: np.ndarray

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InvalidCheckpoint(f"unknown block format {self.format!r}; known: {', '.join(FORMATS)}")
        block = FORMATS[self.format]
        rows, columns = self.shape
        if columns % block.elements:
            raise InvalidCheckpoint(f"{self.format} needs columns in multiples of {block.elements}; got {columns}")
        expected = (rows, columns // block.elements * block.bytes)
        if self.data.dtype != np.uint8 or self.data.shape != expected or not self.data.flags.c_contiguous:
            got = f"{self.data.dtype} {self.data.shape} of strides {self.data.strides}"
            raise InvalidCheckpoint(f"{self.format} {self.shape}: expected uint8 {expected}, C-contiguous; got {got}")

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def dequantize(self) -> np.ndarray:
        """The matrix in float32, (rows, columns)."""
        return dequantize(self.format, self.data)
