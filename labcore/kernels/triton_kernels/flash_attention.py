"""Causal attention over whole prompts: tiles of queries by tiles of keys, softmax online, no score matrix in memory.

The batch is ragged: sequence s owns rows query_start[s] : query_start[s+1] of q, k and v. Query head h reads KV head
h // (heads / kv_heads). A program is a tile of queries of one head; it walks over the keys from 0 to its own diagonal, and
only tiles on the diagonal are masked. The longest programs start first.

FLOPs: 4 x heads x head_dim x n(n + 1)/2 for n tokens. Bytes: q, k, v and out once, (2 heads + 2 kv_heads) x n x head_dim x
size; keys are read again by each tile of queries, from the cache.
Source: Dao et al. 2022 (FlashAttention), Milakov & Gimelshein 2018 (online softmax), Triton's fused-attention tutorial.

    >>> out = flash_attention(q, k, v, query_start, scale=dim**-0.5, max_query_len=8192)
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from labcore.core.errors import ShapeError
from labcore.kernels.triton_kernels.checks import Tensors, Tiles, wide_dot

TILES = Tiles(rows=64, columns=64, num_warps=4, num_stages=3)
WIDE_TILES = Tiles(rows=16, columns=16, num_warps=4, num_stages=2)  # float32, without tensor cores: larger ones spill


@triton.jit
def online_softmax(scores, scale_log2, v, largest, total, sums, WIDE: tl.constexpr):
    """Take one tile of keys in: scores (rows, keys), not yet scaled, v (keys, dim); returns the new running state."""
    new_largest = tl.maximum(largest, tl.max(scores, 1) * scale_log2)
    p = tl.exp2(scores * scale_log2 - new_largest[:, None])  # one multiply-add, and powers of two, which the GPU has
    shrink = tl.exp2(largest - new_largest)
    total = total * shrink + tl.sum(p, 1)
    if WIDE:
        sums = tl.dot(p, v.to(tl.float32), sums * shrink[:, None], input_precision="ieee")
    else:
        sums = tl.dot(p.to(v.dtype), v, sums * shrink[:, None])
    return new_largest, total, sums


@triton.jit
def scores_of(q, k, WIDE: tl.constexpr):
    """q (rows, dim) times k (keys, dim) transposed, in float32."""
    if WIDE:
        return tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee")
    else:
        return tl.dot(q, tl.trans(k))


@triton.jit
def flash_attention_kernel(
    out_ptr, q_ptr, k_ptr, v_ptr, query_start_ptr, scale_log2, heads, kv_heads, dim,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    begin = tl.load(query_start_ptr + tl.program_id(2))
    length = (tl.load(query_start_ptr + tl.program_id(2) + 1) - begin).to(tl.int32)
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    if first_row < length:
        row, key, d = first_row + tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, DIM)
        at = ((begin + row)[:, None] * heads + head) * dim + d[None, :]
        inside = (row < length)[:, None] & (d < dim)[None, :]
        q = tl.load(q_ptr + at, mask=inside, other=0.0)
        keys_at = (begin * kv_heads + head // (heads // kv_heads)) * dim + d[None, :]
        stride = kv_heads * dim
        largest = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, DIM], tl.float32)
        diagonal = first_row // COLUMNS * COLUMNS  # keys before it are before every row: no mask but that of dim
        for start in range(0, diagonal, COLUMNS):
            at_k = keys_at + (start + key)[:, None] * stride
            k = tl.load(k_ptr + at_k, mask=(d < dim)[None, :], other=0.0)
            v = tl.load(v_ptr + at_k, mask=(d < dim)[None, :], other=0.0)
            largest, total, sums = online_softmax(scores_of(q, k, WIDE), scale_log2, v, largest, total, sums, WIDE)
        for start in range(diagonal, tl.minimum(first_row + ROWS, length), COLUMNS):
            at_k = keys_at + (start + key)[:, None] * stride
            live = (start + key < length)[:, None] & (d < dim)[None, :]
            k = tl.load(k_ptr + at_k, mask=live, other=0.0)
            v = tl.load(v_ptr + at_k, mask=live, other=0.0)
            scores = tl.where((start + key)[None, :] <= row[:, None], scores_of(q, k, WIDE), -float("inf"))
            largest, total, sums = online_softmax(scores, scale_log2, v, largest, total, sums, WIDE)
        tl.store(out_ptr + at, (sums / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start: torch.Tensor,
    *,
    scale: float,
    max_query_len: int,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """Causal attention of every token over its own sequence -> (tokens, heads, head_dim).

    q (tokens, heads, head_dim); k, v (tokens, kv_heads, head_dim); query_start int64 (sequences + 1,);
    max_query_len: tokens of the longest sequence, known on the host, so that nobody waits for the GPU; scale: above 0.
    Raises TypeError, ShapeError.
    """
    check = Tensors("flash_attention")
    kind = check.floats("q", q, "tokens", "heads", "head_dim")
    tokens, heads, dim = q.shape
    check("k", k, kind, tokens, "kv_heads", dim)
    check("v", v, kind, *k.shape)
    check("query_start", query_start, "int64", "sequences + 1")
    if not k.shape[1] or heads % k.shape[1]:
        raise ShapeError(f"flash_attention: {heads} heads over {k.shape[1]} KV heads; expected a multiple of the KV heads")
    wide = wide_dot(kind)
    tiles = tiles or (WIDE_TILES if wide else TILES)
    out = torch.empty_like(q)
    grid = (triton.cdiv(max_query_len, tiles.rows), heads, len(query_start) - 1)
    flash_attention_kernel[grid](
        out, q, k, v, query_start, scale * math.log2(math.e), heads, k.shape[1], dim,
        ROWS=tiles.rows, COLUMNS=tiles.columns, DIM=max(16, triton.next_power_of_2(dim)), WIDE=wide,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    return out
