"""The operators as torch writes them: what the native kernels are measured against; they run on a GPU too.

Each method is torch's own operator where there is one (`rms_norm`, `linear`, `silu`, `scaled_dot_product_attention`).
Attention gathers a sequence's blocks into one array first, which copies them; a paged kernel reads them where they lie.
Sums go through a BLAS, so a row's bits depend on its batch (`exact` is False). Quantized weights are expanded.

    >>> backend = TorchBackend(device="cuda", dtype=torch.bfloat16)    # doctest: +SKIP
    >>> backend.rms_norm(torch.ones(2, 8), torch.ones(8), 1e-5).shape
    torch.Size([2, 8])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labcore.core.errors import BackendUnavailable, ShapeError
from labcore.kernels.api import ForwardBatch, Shared, SourceWeight
from labcore.kernels.arguments import Arguments, check_ids, check_k

SCALE_BYTES = 4  # of an int8 pool: see integer_reference


class TorchBackend:
    """`api.Backend` in torch. device: "cpu", "cuda", "cuda:1" ...; dtype: of weights, activations and the KV pool."""

    name = "torch"
    exact = False

    def __init__(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device, self.dtype = torch.device(device), dtype
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise BackendUnavailable(f"torch {torch.__version__} sees no CUDA device; device='cpu' runs everywhere")
        self._kind = str(dtype).removeprefix("torch.")

    def prepare(self, weights: Mapping[str, SourceWeight]) -> dict[str, Tensor]:
        """Everything becomes a dense tensor of this dtype on this device."""
        dense = {name: w if isinstance(w, np.ndarray) else w.dequantize() for name, w in weights.items()}
        return {name: torch.tensor(w, dtype=self.dtype, device=self.device) for name, w in dense.items()}

    def new_kv_cache(self, shape: tuple[int, int, int, int, int, int], dtype: str = "float32") -> Tensor:
        if dtype == "int8":
            return torch.zeros((*shape[:-1], shape[-1] + SCALE_BYTES), dtype=torch.int8, device=self.device)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def embedding(self, token_ids: np.ndarray, weight: Tensor) -> Tensor:
        Arguments("embedding")("token_ids", token_ids, "int64", "tokens")
        check_ids("token id", token_ids, len(weight))
        return weight[self._ids(token_ids)]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        check = Arguments("rms_norm")
        check("x", x, self._kind, "rows", "dim")
        check("weight", weight, self._kind, x.shape[1])
        return functional.rms_norm(x, x.shape[1:], weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        check = Arguments("add_rms_norm")
        check("x", x, self._kind, "rows", "dim")
        check("residual", residual, self._kind, *x.shape)
        check("weight", weight, self._kind, x.shape[1])
        total = x + residual
        return functional.rms_norm(total, x.shape[1:], weight, eps), total

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        check = Arguments("linear", "weight", tuple(weight.shape))
        check("x", x, self._kind, "rows", weight.shape[1])
        if bias is not None:
            check("bias", bias, self._kind, weight.shape[0])
        return functional.linear(x, weight, bias)

    def rope(self, x: Tensor, positions: np.ndarray, cos: Tensor, sin: Tensor) -> Tensor:
        check = Arguments("rope")
        check("x", x, self._kind, "tokens", "heads", "head_dim")
        if x.shape[2] % 2:
            raise ShapeError(f"rope: x has shape {tuple(x.shape)}; expected an even head_dim")
        half = x.shape[2] // 2
        check("positions", positions, "int64", x.shape[0])
        check("cos", cos, self._kind, "max_len", half)
        check("sin", sin, self._kind, len(cos), half)
        check_ids("position", positions, len(cos))
        rows = self._ids(positions)
        c, s = cos[rows][:, None], sin[rows][:, None]  # (tokens, 1, head_dim / 2)
        x1, x2 = x[..., :half], x[..., half:]
        return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], dim=-1)

    def store_kv(self, k: Tensor, v: Tensor, kv: Tensor, slot_mapping: np.ndarray) -> None:
        check = Arguments("store_kv")
        check("k", k, self._kind, "tokens", "kv_heads", "head_dim")
        check("v", v, self._kind, *k.shape)
        check("slot_mapping", slot_mapping, "int64", k.shape[0])
        self._check_pool(check, kv, k.shape[1], k.shape[2])
        check_ids("slot", slot_mapping, kv.shape[1] * kv.shape[3])
        block, slot = map(self._ids, np.divmod(slot_mapping, kv.shape[3]))
        kv[0, block, :, slot], kv[1, block, :, slot] = (_quantized(k), _quantized(v)) if kv.dtype == torch.int8 else (k, v)

    def paged_attention(self, q: Tensor, kv: Tensor, batch: ForwardBatch, scale: float) -> Tensor:
        check = Arguments("paged_attention")
        check("q", q, self._kind, "tokens", "heads", "head_dim")
        self._check_pool(check, kv, "kv_heads", q.shape[2])
        if kv.shape[2] == 0 or q.shape[1] % kv.shape[2]:
            raise ShapeError(
                f"paged_attention: q has shape {tuple(q.shape)}; expected heads in multiples of the {kv.shape[2]} kv_heads of kv"
            )
        check("positions", batch.positions, "int64", q.shape[0])
        check_ids("block id", batch.block_tables, kv.shape[1])
        out = torch.empty_like(q)
        for s in range(batch.num_seqs):
            rows = slice(batch.query_start[s], batch.query_start[s + 1])
            table = batch.block_tables[batch.block_table_start[s] : batch.block_table_start[s + 1]]
            positions = batch.positions[rows]
            check_ids("paged_attention: position", positions, len(table) * kv.shape[3])
            if len(positions):
                out[rows] = self._attend(q[rows], kv[:, self._ids(table)], self._ids(positions), scale)
        return out

    def silu_and_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        check = Arguments("silu_and_mul")
        check("gate", gate, self._kind, "rows", "dim")
        check("up", up, self._kind, *gate.shape)
        return functional.silu(gate.clamp(min=torch.finfo(self.dtype).min)) * up  # silu(-inf) is -inf x 0 to torch

    def softmax(self, x: Tensor) -> Tensor:
        Arguments("softmax")("x", x, self._kind, "rows", "dim")
        return torch.softmax(x, dim=-1)

    def topk_softmax(self, router_logits: Tensor, k: int, renormalize: bool) -> tuple[Tensor, np.ndarray]:
        Arguments("topk_softmax")("router_logits", router_logits, self._kind, "rows", "num_experts")
        check_k(k, router_logits.shape[1])
        ids = router_logits.nan_to_num(-torch.inf, torch.inf, -torch.inf).sort(descending=True, stable=True).indices[:, :k]
        weights = torch.softmax(router_logits, dim=-1).gather(1, ids)
        return weights / weights.sum(1, keepdim=True) if renormalize else weights, ids.cpu().numpy()

    def combine_experts(self, parts: Sequence[Tensor], rows: np.ndarray, weights: Tensor, shared: Shared | None = None) -> Tensor:
        made = torch.cat(list(parts))
        total = weights[:, :1] * made[self._ids(rows[:, 0])]
        for rank in range(1, rows.shape[1]):
            total = total + weights[:, rank : rank + 1] * made[self._ids(rows[:, rank])]
        return total if shared is None else total + shared[0] * torch.sigmoid(shared[1])

    def take_rows(self, x: Tensor, rows: np.ndarray) -> Tensor:
        return x[self._ids(rows)]

    def to_numpy(self, x: Tensor) -> np.ndarray:
        return x.to("cpu", torch.promote_types(self.dtype, torch.float32)).numpy()  # numpy has no bfloat16

    def _attend(self, q: Tensor, pages: Tensor, positions: Tensor, scale: float) -> Tensor:
        """q (T, heads, dim); pages (2, blocks, kv_heads, slots, dim) -> (T, heads, dim)."""
        num_keys = int(positions.max()) + 1
        pages = pages.transpose(1, 2).flatten(2, 3)[:, :, :num_keys]  # (2, kv_heads, keys, dim); what lies behind may be NaN
        keys, values = _expanded(pages).to(self.dtype) if pages.dtype == torch.int8 else pages
        visible = torch.arange(num_keys, device=self.device) <= positions[:, None]  # (T, keys)
        out = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None], keys[None], values[None], attn_mask=visible, scale=scale, enable_gqa=True
        )
        return out[0].transpose(0, 1)

    def _check_pool(self, check: Arguments, kv: Tensor, kv_heads: int | str, dim: int) -> None:
        int8 = getattr(kv, "dtype", None) == torch.int8
        check("kv", kv, "int8" if int8 else self._kind, 2, "blocks", kv_heads, "block_size", dim + SCALE_BYTES * int8)

    def _ids(self, ids: np.ndarray) -> Tensor:
        return torch.from_numpy(ids).to(self.device)


def _quantized(x: Tensor) -> Tensor:
    """`integer_reference.quantize_kv` in torch: (..., dim) -> int8 (..., dim + 4)."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True)
    zero, bad = largest < 2.0**-100, ~largest.isfinite()
    scale = torch.where(bad, torch.nan, torch.where(zero, 0.0, largest / 127))
    quants = torch.where(zero | bad, 0.0, (x * (127 / largest)).round()).to(torch.int8)
    return torch.cat([quants, scale.contiguous().view(torch.int8)], dim=-1)


def _expanded(pool: Tensor) -> Tensor:
    """int8 (..., dim + 4) -> float32 (..., dim)."""
    return pool[..., :-SCALE_BYTES] * pool[..., -SCALE_BYTES:].contiguous().view(torch.float32)
