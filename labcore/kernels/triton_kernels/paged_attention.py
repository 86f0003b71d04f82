"""Attention over a paged KV pool: any ragged mixture of decodes, drafts and chunks of prompts, causal, grouped heads.

A program is a KV head with a tile of rows, a row being a (token, query head of its group) pair: the keys that a group
shares are read once for all of it. Decodes (few rows a sequence) are split over absolute ranges of 512 keys, so that one
long sequence fills the GPU; a second kernel merges the splits in their order, by fixed groups of 16, whatever else is in the
batch. Chunks of prompts have rows enough and are not split.

Bytes of a decode: the keys and values, 2 x keys x kv_heads x head_dim x size; all else is small. FLOPs: 4 x keys x heads x
head_dim: 2 x group / size a byte, far below what a GPU balances: bandwidth is the floor.
Limits: a mixed batch is not split; a decode in it has one program a KV head.
Source: Kwon et al. 2023 (pages), Dao et al. 2023 (Flash-Decoding: splits).

    >>> out = paged_attention(q, kv, positions, query_start, tables, table_start, scale=dim**-0.5,
    ...                       max_query_len=1, max_context_len=4096)
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from labcore.core.errors import ShapeError
from labcore.kernels.triton_kernels.checks import Tensors, Tiles, wide_dot
from labcore.kernels.triton_kernels.flash_attention import TILES, WIDE_TILES, online_softmax, scores_of

DECODE_TILES = Tiles(rows=16, columns=64, num_warps=4, num_stages=5)  # 16 rows: the least of a tensor core
SPLIT_KEYS = 512
MERGED_AT_ONCE = 16


@triton.jit
def paged_attention_kernel(
    out_ptr, partial_ptr, weight_ptr, q_ptr, kv_ptr, v_offset, positions_ptr, query_start_ptr, tables_ptr, table_start_ptr,
    scale_log2, tokens, kv_heads, dim, num_splits, split_keys,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    kv_head, sequence = tl.program_id(1), tl.program_id(2)
    tile, split = tl.program_id(0) // num_splits, tl.program_id(0) % num_splits
    end = tl.load(query_start_ptr + sequence + 1)
    row = tile * ROWS + tl.arange(0, ROWS)
    token = tl.load(query_start_ptr + sequence) + row // GROUP
    position = tl.load(positions_ptr + token, mask=token < end, other=-1)
    last = tl.minimum(tl.max(position, 0) + 1, (split + 1) * split_keys).to(tl.int32)  # the key behind the last that is seen
    if split * split_keys < last:
        position = tl.maximum(position, split * split_keys)  # rows that end before this split: finite, and never read
        key, d = tl.arange(0, COLUMNS), tl.arange(0, DIM)
        at = (token * kv_heads * GROUP + kv_head * GROUP + row % GROUP)[:, None] * dim + d[None, :]
        inside = (token < end)[:, None] & (d < dim)[None, :]
        q = tl.load(q_ptr + at, mask=inside, other=0.0)
        table_ptr = tables_ptr + tl.load(table_start_ptr + sequence)
        largest = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, DIM], tl.float32)
        for start in range(split * split_keys, last, COLUMNS):
            p = start + key
            block = tl.load(table_ptr + p // BLOCK_SIZE, mask=p < last, other=0)
            at_k = ((block * kv_heads + kv_head) * BLOCK_SIZE + p % BLOCK_SIZE)[:, None] * dim + d[None, :]
            live = (p < last)[:, None] & (d < dim)[None, :]  # slots behind it may hold NaN: 0 x NaN is no 0
            k = tl.load(kv_ptr + at_k, mask=live, other=0.0)
            v = tl.load(kv_ptr + v_offset + at_k, mask=live, other=0.0)
            scores = tl.where(p[None, :] <= position[:, None], scores_of(q, k, WIDE), -float("inf"))
            largest, total, sums = online_softmax(scores, scale_log2, v, largest, total, sums, WIDE)
        mean = sums / total[:, None]
        if SPLIT:  # (splits, tokens, heads, head_dim), and what each split weighs, as a power of two
            place = split.to(tl.int64) * tokens * kv_heads * GROUP
            tl.store(partial_ptr + place * dim + at, mean, mask=inside)
            weight_at = place + token * kv_heads * GROUP + kv_head * GROUP + row % GROUP
            tl.store(weight_ptr + weight_at, largest + tl.log2(total), mask=token < end)
        else:
            tl.store(out_ptr + at, mean.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def merge_splits_kernel(
    out_ptr, partial_ptr, weight_ptr, positions_ptr, rows, heads, dim, split_keys, AT_ONCE: tl.constexpr, DIM: tl.constexpr
):
    """A program is a (token, head) row: it takes the splits that its position reaches, and never reads another."""
    row = tl.program_id(0).to(tl.int64)
    num_splits = (tl.load(positions_ptr + row // heads) // split_keys + 1).to(tl.int32)
    d, part = tl.arange(0, DIM), tl.arange(0, AT_ONCE)
    largest, total, sums = -float("inf"), 0.0, tl.zeros([DIM], tl.float32)
    for start in range(0, num_splits, AT_ONCE):
        split = start + part
        at = split.to(tl.int64) * rows + row
        weight = tl.load(weight_ptr + at, mask=split < num_splits, other=-float("inf"))
        live = (split < num_splits)[:, None] & (d < dim)[None, :]
        mean = tl.load(partial_ptr + at[:, None] * dim + d[None, :], mask=live, other=0.0)
        new_largest = tl.maximum(largest, tl.max(weight, 0))
        weight, shrink = tl.exp2(weight - new_largest), tl.exp2(largest - new_largest)
        sums = sums * shrink + tl.sum(weight[:, None] * mean, 0)
        total = total * shrink + tl.sum(weight, 0)
        largest = new_largest
    tl.store(out_ptr + row * dim + d, (sums / total).to(out_ptr.dtype.element_ty), mask=d < dim)


def paged_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    query_start: torch.Tensor,
    block_tables: torch.Tensor,
    block_table_start: torch.Tensor,
    *,
    scale: float,
    max_query_len: int,
    max_context_len: int,
    tiles: Tiles | None = None,
    split_keys: int = SPLIT_KEYS,
) -> torch.Tensor:
    """A query at position p sees keys 0..p of its sequence -> (tokens, heads, head_dim).

    q (tokens, heads, head_dim); kv (2, blocks, kv_heads, block_size, head_dim); the others int64, as in `ForwardBatch`;
    the two maxima are known on the host; scale: above 0; split_keys: a multiple of the columns of a tile.

    Raises TypeError, ShapeError.
    """
    check = Tensors("paged_attention")
    kind = check.floats("q", q, "tokens", "heads", "head_dim")
    tokens, heads, dim = q.shape
    check("kv", kv, kind, 2, "blocks", "kv_heads", "block_size", dim)
    check("positions", positions, "int64", tokens)
    check("query_start", query_start, "int64", "sequences + 1")
    check("block_tables", block_tables, "int64", "blocks of all")
    check("block_table_start", block_table_start, "int64", len(query_start))
    kv_heads = kv.shape[2]
    if not kv_heads or heads % kv_heads:
        raise ShapeError(f"paged_attention: {heads} heads over {kv_heads} KV heads; expected a multiple of the KV heads")
    wide, rows = wide_dot(kind), max_query_len * heads // kv_heads
    decodes = rows <= DECODE_TILES.rows
    tiles = tiles or (WIDE_TILES if wide else DECODE_TILES if decodes else TILES)
    num_splits = triton.cdiv(max_context_len, split_keys) if decodes else 1
    if num_splits == 1:
        split_keys = max_context_len
    elif split_keys % tiles.columns:
        raise ShapeError(f"paged_attention: splits of {split_keys} keys by tiles of {tiles.columns}; expected a multiple")
    out = torch.empty_like(q)
    partial = q.new_empty((num_splits, tokens, heads, dim) if num_splits > 1 else (0,), dtype=torch.float32)
    weight = q.new_empty((num_splits, tokens, heads) if num_splits > 1 else (0,), dtype=torch.float32)
    block = max(16, triton.next_power_of_2(dim))
    paged_attention_kernel[(triton.cdiv(rows, tiles.rows) * num_splits, kv_heads, len(query_start) - 1)](
        out, partial, weight, q, kv, kv[0].numel(), positions, query_start, block_tables, block_table_start,
        scale * math.log2(math.e), tokens, kv_heads, dim, num_splits, split_keys,
        GROUP=heads // kv_heads, BLOCK_SIZE=kv.shape[3], SPLIT=num_splits > 1,
        ROWS=tiles.rows, COLUMNS=tiles.columns, DIM=block, WIDE=wide,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    if num_splits > 1:
        merge_splits_kernel[(tokens * heads,)](
            out,
            partial,
            weight,
            positions,
            tokens * heads,
            heads,
            dim,
            split_keys,
            AT_ONCE=MERGED_AT_ONCE,
            DIM=block,
            num_warps=1,
        )
    return out
