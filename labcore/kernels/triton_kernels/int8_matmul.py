"""Product of int8 matrices with int32 sums, scaled at the end: activations by row, weights by output channel.

    out[m, n] = (sum over k of x[m, k] * w[n, k]) * x_scale[m] * w_scale[n]

The sum is exact in any order while k * 128^2 < 2^31: k up to 131,071. Programs go through the output in groups of 8 tile
rows, so that what neighbours read is still in the cache.

Operations: 2 x m x n x k. Bytes: m x k + n x k + m x n x size of the output.
Source: Dettmers et al. 2022 (LLM.int8: a scale a row and a channel); Triton's matrix-multiplication tutorial.

    >>> y = int8_matmul(x, w, x_scale, w_scale, torch.bfloat16)    # x (m, k), w (n, k) int8 -> (m, n)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from labcore.core.errors import ShapeError
from labcore.kernels.triton_kernels.checks import FLOATS, Tensors, Tiles

TILES = Tiles(rows=128, columns=256, num_warps=8, num_stages=3)
DEPTH = 128  # k of a tile
MOST_K = (2**31 - 1) // 128**2
GROUP_ROWS = 8


@triton.jit
def int8_matmul_kernel(
    out_ptr, x_ptr, w_ptr, x_scale_ptr, w_scale_ptr, m, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(m, ROWS), tl.cdiv(n, COLUMNS)
    first = tl.program_id(0) // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    tile_m = first + tl.program_id(0) % (GROUP * tiles_n) % height
    tile_n = tl.program_id(0) % (GROUP * tiles_n) // height
    row, column, depth = tile_m * ROWS + tl.arange(0, ROWS), tile_n * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    # rows behind the end wrap around: what they give is not stored, and the loop needs no mask for them
    x_at = x_ptr + (row % m).to(tl.int64)[:, None] * k + depth[None, :]
    w_at = w_ptr + (column % n).to(tl.int64)[:, None] * k + depth[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.int32)
    for start in range(0, k, DEPTH):
        x = tl.load(x_at, mask=(depth < k - start)[None, :], other=0)
        w = tl.load(w_at, mask=(depth < k - start)[None, :], other=0)
        sums = tl.dot(x, tl.trans(w), sums, out_dtype=tl.int32)
        x_at += DEPTH
        w_at += DEPTH
    x_scale = tl.load(x_scale_ptr + row, mask=row < m, other=0.0)
    w_scale = tl.load(w_scale_ptr + column, mask=column < n, other=0.0)
    out = sums.to(tl.float32) * x_scale[:, None] * w_scale[None, :]
    inside = (row < m)[:, None] & (column < n)[None, :]
    tl.store(out_ptr + row.to(tl.int64)[:, None] * n + column[None, :], out.to(out_ptr.dtype.element_ty), mask=inside)


def int8_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    *,
    tiles: Tiles = TILES,
    depth: int = DEPTH,
) -> torch.Tensor:
    """x int8 (m, k) times w int8 (n, k) transposed, scaled by x_scale float32 (m,) and w_scale float32 (n,) -> dtype (m, n).

    Raises TypeError, ShapeError.
    """
    check = Tensors("int8_matmul")
    check("x", x, "int8", "m", "k")
    (m, k), n = x.shape, len(w)
    check("w", w, "int8", "n", k)
    check("x_scale", x_scale, "float32", m)
    check("w_scale", w_scale, "float32", n)
    if str(dtype).removeprefix("torch.") not in FLOATS:
        raise TypeError(f"int8_matmul: dtype is {dtype}; expected one of {', '.join(FLOATS)}")
    if not 0 < k <= MOST_K:
        raise ShapeError(f"int8_matmul: k is {k}; expected 1 to {MOST_K}: beyond, an int32 sum may overflow")
    out = torch.empty((m, n), dtype=dtype, device=x.device)
    int8_matmul_kernel[(triton.cdiv(m, tiles.rows) * triton.cdiv(n, tiles.columns),)](
        out, x, w, x_scale, w_scale, m, n, k, ROWS=tiles.rows, COLUMNS=tiles.columns, DEPTH=depth, GROUP=GROUP_ROWS,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    return out
