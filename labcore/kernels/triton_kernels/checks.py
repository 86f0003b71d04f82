"""What every wrapper checks before a kernel gets a pointer: a kernel sees addresses only, and follows a wrong one.

Limits: shapes, types, strides and devices are checked, which costs no wait for the GPU; the values of index arrays are
not (`backend.py` checks them on the host).

    >>> check = Tensors("rms_norm")
    >>> kind = check.floats("x", torch.ones(4, 8), "rows", "columns")
    >>> check("weight", torch.ones(7), kind, 8)
    Traceback (most recent call last):
    labcore.core.errors.ShapeError: rms_norm: weight has shape (7,); expected (8,) to match x (4, 8)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from labcore.core.errors import BackendUnavailable
from labcore.kernels.arguments import Arguments

FLOATS = ("float32", "float16", "bfloat16")
INTERPRETED = bool(triton.knobs.runtime.interpret)  # TRITON_INTERPRET as it was when the kernels were made


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """How a kernel cuts its work: a tile of `rows` x `columns`, by `num_warps` x 32 threads, `num_stages` tiles in flight."""

    rows: int
    columns: int
    num_warps: int = 4
    num_stages: int = 2


class Tensors(Arguments):
    """The arguments of one launch: tensors on one device, one where Triton runs."""

    device: torch.device | None = None  # of the first

    def floats(self, name: str, x: Any, *expected: int | str) -> str:
        """Check an argument of any float type, and return that type. Raises what a call does."""
        kind = str(getattr(x, "dtype", "")).removeprefix("torch.")
        if kind and kind not in FLOATS:
            raise TypeError(f"{self.operator}: {name} is {kind}; expected one of {', '.join(FLOATS)}")
        self(name, x, kind, *expected)
        return kind

    def __call__(self, name: str, array: Any, dtype: str, *expected: int | str) -> None:
        """Raises TypeError (no tensor, dtype, strides, device), ShapeError or BackendUnavailable (a CPU and no interpreter)."""
        what = f"{self.operator}: {name}"
        if not isinstance(array, torch.Tensor):
            raise TypeError(f"{what} is of type {type(array).__name__}; expected a torch tensor")
        super().__call__(name, array, dtype, *expected)
        if self.device not in (None, array.device):
            raise TypeError(f"{what} is on {array.device}; expected {self.device}, as the first argument")
        if not array.is_cuda and not INTERPRETED:
            raise BackendUnavailable(
                f"{what} is on {array.device}, where Triton compiles nothing: move it to a CUDA device, or set "
                "TRITON_INTERPRET=1 before triton is imported"
            )
        self.device = array.device


def warps_for(block: int) -> int:
    """Warps for a block of this many numbers: up to 32 numbers a thread, so that a few loads of 16 bytes are in flight."""
    return min(16, max(1, block // 1024))


def wide_dot(kind: str) -> bool:
    """Whether a product's operands are widened to float32: float32 itself, and all in the interpreter, whose bf16 is wrong."""
    return INTERPRETED or kind == "float32"
