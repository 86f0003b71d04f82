"""The gate of a SwiGLU: gate * sigmoid(gate) * up, elementwise; a program is a run of numbers.

Bytes: two arrays read, one written: 3 x numbers x size. FLOPs: about 5 a number.
Source: Shazeer 2020.

    >>> y = silu_and_mul(gate, up)    # both (rows, columns), one dtype
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from labcore.kernels.triton_kernels.checks import Tensors, warps_for

BLOCK = 4096  # of bf16 with 4 warps: 4 loads of 16 bytes a thread and array


@triton.jit
def silu_and_mul_kernel(out_ptr, gate_ptr, up_ptr, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gate = tl.load(gate_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.where(gate < -1e30, -1e30, gate)  # -inf / inf would be a NaN; a NaN is not below, and stays
    tl.store(out_ptr + at, (gate / (1.0 + tl.exp(-gate)) * up).to(out_ptr.dtype.element_ty), mask=inside)


def silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gate * sigmoid(gate) * up. Both (rows, columns). Raises TypeError, ShapeError."""
    check = Tensors("silu_and_mul")
    check("up", up, check.floats("gate", gate, "rows", "columns"), *gate.shape)
    out = torch.empty_like(gate)
    grid = (triton.cdiv(gate.numel(), BLOCK),)
    silu_and_mul_kernel[grid](out, gate, up, gate.numel(), BLOCK=BLOCK, num_warps=warps_for(BLOCK))
    return out
