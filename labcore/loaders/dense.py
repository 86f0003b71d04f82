"""Numbers at rest: float32, float16 and bfloat16 as files hold them, to float32 and back.

Reading is exact. Writing rounds to the nearest (ties to even), and refuses a number that would become infinite.

    >>> encode(np.float32([1 / 3]), "BF16")            # the upper half of a float32
    array([16043], dtype=uint16)
    >>> decode(np.uint16([16043]), "BF16")
    array([0.33398438], dtype=float32)
"""

from __future__ import annotations

import numpy as np

from labcore.core.errors import InvalidCheckpoint

STORED: dict[str, np.dtype] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Float32 of an array as it lies in a file; of F32 a view."""
    if dtype == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return np.require(stored, np.float32, ["C", "A"])


def encode(values: np.ndarray, dtype: str, name: str = "array") -> np.ndarray:
    """What a file of this type holds for float32 `values`. InvalidCheckpoint, naming the tensor, if a number is too large."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "F32":
        return values.astype(STORED[dtype], copy=False)
    if dtype == "F16":
        with np.errstate(over="ignore"):
            stored = values.astype(STORED[dtype])
    else:
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        stored = np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(STORED[dtype])  # a NaN must not round to infinity
    if np.isinf(decode(stored, dtype)).sum() != np.isinf(values).sum():
        largest = np.abs(values[np.isfinite(values)]).max()
        raise InvalidCheckpoint(f"{name} holds {largest:.6g}, which {dtype} cannot; choose another type")
    return stored
