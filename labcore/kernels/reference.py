"""The operators in numpy, as plainly as they can be written, at one of two precisions.

`ReferenceBackend(np.float64)` works row by row: it is the oracle every other backend is tested against, and exact, since a
row never meets its batch mates. `ReferenceBackend(np.float32)` is the `numpy` backend: whole matrices through BLAS, fast
enough to use, equal within tolerance (a BLAS sums in an order that depends on the shape of the batch).

    >>> ReferenceBackend(np.float64).silu_and_mul(np.ones((1, 2)), np.ones((1, 2))).round(3)
    array([[0.731, 0.731]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labcore.kernels.api import Backend, ForwardBatch, Shared, SourceWeight
from labcore.kernels.arguments import check_k
from labcore.kernels.integer_reference import SCALE_BYTES, expand_kv, quantize_kv


class ReferenceBackend:
    """`api.Backend` in numpy. dtype: float64 (name "reference") or float32 (name "numpy")."""

    def __init__(self, dtype: type[np.floating]) -> None:
        self.dtype = np.dtype(dtype)
        self.exact = self.dtype == np.float64
        self.name = "reference" if self.exact else "numpy"

    def prepare(self, weights: Mapping[str, SourceWeight]) -> dict[str, np.ndarray]:
        """Everything becomes a dense array of this dtype; quantized matrices are expanded."""
        return {name: np.asarray(w if isinstance(w, np.ndarray) else w.dequantize(), self.dtype) for name, w in weights.items()}

    def new_kv_cache(self, shape: tuple[int, int, int, int, int, int], dtype: str = "float32") -> np.ndarray:
        if dtype == "int8":
            return np.zeros((*shape[:-1], shape[-1] + SCALE_BYTES), np.int8)
        return np.zeros(shape, self.dtype)

    def embedding(self, token_ids: np.ndarray, weight: np.ndarray) -> np.ndarray:
        _check_ids("token id", token_ids, len(weight))
        return weight[token_ids]

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
        _check_shape("rms_norm: weight", weight, x.shape[-1:])
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self.dtype.type(eps)) * weight

    def add_rms_norm(self, x: np.ndarray, residual: np.ndarray, weight: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
        _check_shape("add_rms_norm: residual", residual, x.shape)
        total = x + residual
        return self.rms_norm(total, weight, eps), total

    def linear(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        if x.shape[-1] != weight.shape[-1]:
            raise ValueError(f"linear: x has shape {x.shape}; expected (tokens, {weight.shape[-1]})")
        if bias is not None:
            _check_shape("linear: bias", bias, weight.shape[:1])
        out = np.array([weight @ row for row in x]).reshape(-1, len(weight)) if self.exact else x @ weight.T
        return out if bias is None else out + bias

    def rope(self, x: np.ndarray, positions: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        _check_ids("position", positions, len(cos))
        half = x.shape[-1] // 2
        x1, x2 = x[..., :half], x[..., half:]
        c, s = cos[positions][:, None], sin[positions][:, None]  # (num_tokens, 1, head_dim / 2)
        return np.concatenate([x1 * c - x2 * s, x2 * c + x1 * s], axis=-1)

    def store_kv(self, k: np.ndarray, v: np.ndarray, kv: np.ndarray, slot_mapping: np.ndarray) -> None:
        block_size = kv.shape[3]
        _check_ids("slot", slot_mapping, kv.shape[1] * block_size)
        block, slot = np.divmod(slot_mapping, block_size)
        if kv.dtype == np.int8:
            k, v = quantize_kv(k), quantize_kv(v)
        kv[0, block, :, slot] = k
        kv[1, block, :, slot] = v

    def paged_attention(self, q: np.ndarray, kv: np.ndarray, batch: ForwardBatch, scale: float) -> np.ndarray:
        out = np.empty_like(q)
        _check_ids("block id", batch.block_tables, kv.shape[1])
        for s in range(batch.num_seqs):
            rows = slice(batch.query_start[s], batch.query_start[s + 1])
            table = batch.block_tables[batch.block_table_start[s] : batch.block_table_start[s + 1]]
            positions = batch.positions[rows]
            _check_ids("position", positions, len(table) * kv.shape[3])
            pages = expand_kv(kv[:, table]).astype(q.dtype) if kv.dtype == np.int8 else kv[:, table]
            # (2, blocks, kv_heads, slots, dim) -> (2, kv_heads, blocks x slots, dim)
            keys, values = np.moveaxis(pages, 2, 1).reshape(2, kv.shape[2], -1, pages.shape[4])
            if self.exact:
                for row, position in zip(range(rows.start, rows.stop), positions, strict=True):
                    out[row] = _attend(q[row : row + 1], keys, values, position[None], scale)
            else:
                out[rows] = _attend(q[rows], keys, values, positions, scale)
        return out

    def silu_and_mul(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        _check_shape("silu_and_mul: up", up, gate.shape)
        # at the least number of the type e^-gate overflows to inf, and gate / inf is the right 0; -inf / inf would be a NaN
        with np.errstate(over="ignore"):
            gate = np.maximum(gate, np.finfo(self.dtype).min)
            return gate / (1 + np.exp(-gate)) * up

    def softmax(self, x: np.ndarray) -> np.ndarray:
        weights = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
        return weights / weights.sum(axis=-1, keepdims=True)

    def topk_softmax(self, router_logits: np.ndarray, k: int, renormalize: bool) -> tuple[np.ndarray, np.ndarray]:
        check_k(k, router_logits.shape[1])
        ids = np.argsort(-np.where(np.isnan(router_logits), -np.inf, router_logits), axis=1, kind="stable")[:, :k]
        weights = np.take_along_axis(self.softmax(router_logits), ids, axis=1)
        return weights / weights.sum(axis=1, keepdims=True) if renormalize else weights, ids

    def combine_experts(
        self, parts: Sequence[np.ndarray], rows: np.ndarray, weights: np.ndarray, shared: Shared | None = None
    ) -> np.ndarray:
        return combined(self, parts, rows, weights, shared)

    def take_rows(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return x[rows]

    def to_numpy(self, x: np.ndarray) -> np.ndarray:
        return x


def combined(
    ops: Backend, parts: Sequence[np.ndarray], rows: np.ndarray, weights: np.ndarray, shared: Shared | None
) -> np.ndarray:
    """`api.Backend.combine_experts` for arrays of numpy. Element by element, so a row's bits are its own."""
    made = np.concatenate(parts)
    total = weights[:, :1] * made[rows[:, 0]]
    for rank in range(1, rows.shape[1]):
        total += weights[:, rank : rank + 1] * made[rows[:, rank]]
    if shared is not None:
        out, gate = shared
        total += ops.softmax(np.concatenate([gate, np.zeros_like(gate)], axis=1))[:, :1] * out  # sigmoid g: e^g / (e^g + e^0)
    return total


def _attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray, positions: np.ndarray, scale: Any) -> np.ndarray:
    """q (T, heads, dim); keys, values (kv_heads, keys, dim); positions (T,) -> (T, heads, dim)."""
    tokens, heads, dim = q.shape
    num_keys = positions.max() + 1
    # what lies beyond may be NaN: it is cut off, not masked; contiguous, as einsum's order of summing follows the strides
    keys, values = np.ascontiguousarray(keys[:, :num_keys]), np.ascontiguousarray(values[:, :num_keys])
    grouped = q.reshape(tokens, len(keys), heads // len(keys), dim)
    scores = np.einsum("tkgd,ksd->tkgs", grouped, keys, optimize=True) * q.dtype.type(scale)
    visible = np.arange(num_keys) <= positions[:, None]  # (T, keys)
    scores = np.where(visible[:, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("tkgs,ksd->tkgd", weights, values, optimize=True).reshape(tokens, heads, dim)


def _check_shape(what: str, array: np.ndarray, expected: tuple[int, ...]) -> None:
    if array.shape != expected:  # numpy would broadcast
        raise ValueError(f"{what} has shape {array.shape}; expected {expected}")


def _check_ids(what: str, ids: np.ndarray, limit: int) -> None:
    if len(ids) and not (ids.min() >= 0 and ids.max() < limit):
        raise ValueError(f"{what} out of range: got {ids.min()} to {ids.max()}, expected [0, {limit})")
