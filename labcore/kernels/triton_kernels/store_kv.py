"""New keys and values into the pool, each token at its slot: a program is a token with all its KV heads, K and V.

Bytes: 4 x tokens x kv_heads x head_dim x size (K and V, read and written). FLOPs: none.
Limits: a slot below zero writes nothing (padding); one behind the pool must not occur: `backend.py` checks on the host.
Source: Kwon et al. 2023 (paged attention); the pool's layout is that of `labcore.kernels.api`.

    >>> store_kv(k, v, kv, slot_mapping)    # k, v (tokens, kv_heads, head_dim), kv (2, blocks, kv_heads, block_size, head_dim)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from labcore.kernels.triton_kernels.checks import Tensors, warps_for


@triton.jit
def store_kv_kernel(kv_ptr, k_ptr, v_ptr, slots_ptr, v_offset, heads, dim, block_size, HEADS: tl.constexpr, DIM: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        head, d = tl.arange(0, HEADS)[:, None], tl.arange(0, DIM)[None, :]
        inside = (head < heads) & (d < dim)
        source = (token * heads + head) * dim + d
        # (blocks, kv_heads, block_size, head_dim)
        target = ((slot // block_size * heads + head) * block_size + slot % block_size) * dim + d
        tl.store(kv_ptr + target, tl.load(k_ptr + source, mask=inside), mask=inside)
        tl.store(kv_ptr + v_offset + target, tl.load(v_ptr + source, mask=inside), mask=inside)


def store_kv(k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write k, v (tokens, kv_heads, head_dim) into one layer's pool kv (2, blocks, kv_heads, block_size, head_dim).

    slot_mapping: int64 (tokens,), block * block_size + offset, no slot twice. Raises TypeError, ShapeError.
    """
    check = Tensors("store_kv")
    kind = check.floats("k", k, "tokens", "kv_heads", "head_dim")
    tokens, heads, dim = k.shape
    check("v", v, kind, *k.shape)
    check("kv", kv, kind, 2, "blocks", heads, "block_size", dim)
    check("slot_mapping", slot_mapping, "int64", tokens)
    tile = triton.next_power_of_2(heads), triton.next_power_of_2(dim)
    store_kv_kernel[(tokens,)](
        kv, k, v, slot_mapping, kv[0].numel(), heads, dim, kv.shape[3], HEADS=tile[0], DIM=tile[1],
        num_warps=warps_for(tile[0] * tile[1]),
    )  # fmt: skip
