"""Softmax over rows, read once: a program is a row, which stays in registers between its maximum and its sum.

Bytes: 2 x rows x columns x size, where three passes (maximum, sum, quotient) would move 4 x. FLOPs: about 5 a number.
Limits: a row must fit into a program's registers, 2^17 numbers at the most.
Source: Milakov & Gimelshein 2018 on the passes; Triton's fused-softmax tutorial.

    >>> p = softmax(x)    # x (rows, columns)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from labcore.core.errors import ShapeError
from labcore.kernels.triton_kernels.checks import Tensors, warps_for

MOST_COLUMNS = 1 << 17


@triton.jit
def softmax_kernel(out_ptr, x_ptr, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < columns
    at = tl.program_id(0).to(tl.int64) * columns + column
    x = tl.load(x_ptr + at, mask=inside, other=-float("inf")).to(tl.float32)  # other: e^-inf adds nothing; a zero would
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + at, (e / tl.sum(e, 0)).to(out_ptr.dtype.element_ty), mask=inside)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """e^x / sum(e^x), per row. x (rows, columns). Raises TypeError, ShapeError."""
    Tensors("softmax").floats("x", x, "rows", "columns")
    if not 0 < x.shape[1] <= MOST_COLUMNS:
        raise ShapeError(f"softmax: x has {x.shape[1]} columns; expected 1 to {MOST_COLUMNS}, a row that fits into registers")
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    softmax_kernel[(x.shape[0],)](out, x, x.shape[1], BLOCK=block, num_warps=warps_for(block))
    return out
