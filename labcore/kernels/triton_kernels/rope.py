"""Rotary embedding, halves convention (column i goes with i + head_dim / 2): a program is a token with all its heads.

Bytes: 2 x tokens x heads x head_dim x size; a token's row of the tables, head_dim x 4 bytes, serves all its heads.
FLOPs: 3 a number. Limits: all heads of a token in one tile, 2^15 numbers at the most.
Source: Su et al. 2021.

    >>> y = rope(x, positions, cos, sin)    # x (tokens, heads, head_dim), cos and sin float32 (max_len, head_dim / 2)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from labcore.core.errors import ShapeError
from labcore.kernels.triton_kernels.checks import Tensors, warps_for

MOST_NUMBERS = 1 << 15


@triton.jit
def rope_kernel(out_ptr, x_ptr, positions_ptr, cos_ptr, sin_ptr, heads, half, HEADS: tl.constexpr, HALF: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    head, pair = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (pair < half)
    position = tl.load(positions_ptr + token)
    cos = tl.load(cos_ptr + position * half + pair, mask=pair < half, other=0.0)
    sin = tl.load(sin_ptr + position * half + pair, mask=pair < half, other=0.0)
    at = (token * heads + head) * 2 * half + pair
    a = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + at + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (a * cos - b * sin).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(out_ptr + at + half, (b * cos + a * sin).to(out_ptr.dtype.element_ty), mask=inside)


def rope(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x (tokens, heads, head_dim) turned to positions int64 (tokens,), which must lie inside the tables.

    cos, sin: float32 (max_len, head_dim / 2). Raises TypeError, ShapeError.
    """
    check = Tensors("rope")
    check.floats("x", x, "tokens", "heads", "head_dim")
    tokens, heads, head_dim = x.shape
    if head_dim % 2 or not 0 < head_dim * heads <= MOST_NUMBERS:
        raise ShapeError(f"rope: x has {heads} heads of {head_dim}; expected an even head_dim and 1 to {MOST_NUMBERS} numbers")
    check("positions", positions, "int64", tokens)
    check("cos", cos, "float32", "max_len", head_dim // 2)
    check("sin", sin, "float32", *cos.shape)
    out = torch.empty_like(x)
    tile = triton.next_power_of_2(heads), triton.next_power_of_2(head_dim // 2)
    rope_kernel[(tokens,)](
        out, x, positions, cos, sin, heads, head_dim // 2, HEADS=tile[0], HALF=tile[1], num_warps=warps_for(tile[0] * tile[1])
    )
    return out
