"""The k largest of each row, their places and softmax weights: a program is a row, which stays in registers for all k searches.

Bytes: rows x (columns x size + k x (size + 8)). FLOPs: about 5 a number, and 2 a number for each of the k.
Of equals the lower place goes first; a NaN stands where -inf would, and makes all weights of its row NaN.
Limits: a row must fit into a program's registers, 2^17 numbers at the most; k searches, where a sort would take log^2 of the row.
Source: Triton's fused-softmax tutorial; the k searches as in vLLM's kernel of this name.

    >>> weights, places = topk_softmax(router_logits, 2, renormalize=True)    # router_logits (rows, num_experts)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from labcore.core.errors import ShapeError
from labcore.kernels.arguments import check_k
from labcore.kernels.triton_kernels.checks import Tensors, warps_for
from labcore.kernels.triton_kernels.softmax import MOST_COLUMNS


@triton.jit
def topk_softmax_kernel(
    weights_ptr, places_ptr, x_ptr, columns, k, RENORMALIZE: tl.constexpr, BLOCK: tl.constexpr, KEPT: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column, rank = tl.arange(0, BLOCK), tl.arange(0, KEPT)
    inside = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=inside, other=-float("inf")).to(tl.float32)
    order = tl.where(x != x, -float("inf"), x)
    chosen = tl.full((KEPT,), -float("inf"), tl.float32)
    places = tl.full((KEPT,), 0, tl.int32)
    free = inside
    for j in range(k):
        largest = tl.max(tl.where(free, order, -float("inf")), 0)
        place = tl.min(tl.where(free & (order == largest), column, BLOCK), 0)  # the lowest of equals
        chosen = tl.where(rank == j, largest, chosen)
        places = tl.where(rank == j, place, places)
        free = free & (column != place)
    top = tl.max(chosen, 0)
    powers = tl.exp(chosen - top)
    every = tl.sum(tl.exp(x - top), 0)  # a NaN in the row shows here
    total = tl.where(every != every, every, tl.sum(tl.where(rank < k, powers, 0.0), 0)) if RENORMALIZE else every
    tl.store(weights_ptr + row * k + rank, (powers / total).to(weights_ptr.dtype.element_ty), mask=rank < k)
    tl.store(places_ptr + row * k + rank, places.to(tl.int64), mask=rank < k)


def topk_softmax(router_logits: torch.Tensor, k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (rows, k) and places int64 (rows, k), the largest first. Raises TypeError, ShapeError, ValueError (k)."""
    Tensors("topk_softmax").floats("router_logits", router_logits, "rows", "num_experts")
    rows, columns = router_logits.shape
    if columns > MOST_COLUMNS:
        raise ShapeError(f"topk_softmax: router_logits has {columns} columns; expected at most {MOST_COLUMNS}")
    check_k(k, columns)
    weights = router_logits.new_empty(rows, k)
    places = torch.empty(rows, k, dtype=torch.int64, device=router_logits.device)
    block, kept = triton.next_power_of_2(columns), triton.next_power_of_2(k)
    topk_softmax_kernel[(rows,)](
        weights, places, router_logits, columns, k, RENORMALIZE=renormalize, BLOCK=block, KEPT=kept, num_warps=warps_for(block)
    )
    return weights, places
