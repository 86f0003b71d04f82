"""RMSNorm, alone and fused with the residual addition: a program is a row, which stays in registers.

Bytes: rms_norm reads and writes each number once, 2 x rows x columns x size; add_rms_norm 4 x, where addition and norm
apart would move 5 x. FLOPs: about 4 a number: far below what the bytes cost.
Limits: a row must fit into a program's registers, 2^16 numbers at the most.
Source: Zhang & Sennrich 2019; the fusion as in vLLM's fused_add_rms_norm.

    >>> y = rms_norm(x, weight, 1e-5)    # x (rows, columns), weight (columns,), one dtype
    >>> y, total = add_rms_norm(x, residual, weight, 1e-5)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from labcore.core.errors import ShapeError
from labcore.kernels.triton_kernels.checks import Tensors, warps_for

MOST_COLUMNS = 1 << 16


@triton.jit
def rms_norm_kernel(out_ptr, total_ptr, x_ptr, residual_ptr, weight_ptr, columns, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < columns  # BLOCK is a power of two, columns need not be
    at = tl.program_id(0).to(tl.int64) * columns + column
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)  # other: a zero adds nothing to the sum of squares
    if ADD:
        x += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
        total = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + at, total, mask=inside)
        x = total.to(tl.float32)  # the norm of what was stored, so that fused equals apart
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.sum(x * x, 0) / columns
    tl.store(out_ptr + at, (x * tl.rsqrt(mean_square + eps) * weight).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, per row. x (rows, columns), weight (columns,). Raises TypeError, ShapeError."""
    return _launch("rms_norm", x, None, weight, eps)[0]


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual), all (rows, columns). Raises TypeError, ShapeError."""
    return _launch("add_rms_norm", x, residual, weight, eps, add=True)


def _launch(operator: str, x: torch.Tensor, residual: Any, weight: torch.Tensor, eps: float, add: bool = False) -> Any:
    """The norm, and the sum or None."""
    check = Tensors(operator)
    kind = check.floats("x", x, "rows", "columns")
    if add:
        check("residual", residual, kind, *x.shape)
    check("weight", weight, kind, x.shape[1])
    if not 0 < x.shape[1] <= MOST_COLUMNS:
        raise ShapeError(f"{operator}: x has {x.shape[1]} columns; expected 1 to {MOST_COLUMNS}, a row that fits into registers")
    out, block = torch.empty_like(x), triton.next_power_of_2(x.shape[1])
    total = torch.empty_like(x) if add else None
    rms_norm_kernel[(x.shape[0],)](
        out, total, x, residual, weight, x.shape[1], eps, ADD=add, BLOCK=block, num_warps=warps_for(block)
    )
    return out, total
