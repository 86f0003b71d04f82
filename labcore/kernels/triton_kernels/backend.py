"""The operators of a decoder by Triton's kernels; `linear` and `embedding` stay torch's (cuBLAS).

`TritonBackend()` needs a CUDA device; `TritonBackend("cpu", torch.float32)` runs in Triton's interpreter, slowly, for tests.
Limits: equal within tolerance (`exact` is False): cuBLAS chooses its order of summing by the shape of the batch. Packed
weights are expanded, and there is no int8 KV pool. Every operator is its own launch.

    >>> backend = TritonBackend()                             # bfloat16 on the first GPU
    >>> model = load_model("smollm2", backend=backend)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from labcore.core.errors import BackendUnavailable, InvalidConfig
from labcore.kernels.api import ForwardBatch, SourceWeight
from labcore.kernels.arguments import check_ids
from labcore.kernels.torch_backend import TorchBackend
from labcore.kernels.triton_kernels.checks import INTERPRETED
from labcore.kernels.triton_kernels.paged_attention import paged_attention
from labcore.kernels.triton_kernels.rms_norm import add_rms_norm, rms_norm
from labcore.kernels.triton_kernels.rope import rope
from labcore.kernels.triton_kernels.silu_and_mul import silu_and_mul
from labcore.kernels.triton_kernels.softmax import softmax
from labcore.kernels.triton_kernels.store_kv import store_kv
from labcore.kernels.triton_kernels.topk_softmax import topk_softmax

REMEMBERED = 16  # index arrays on the device: a step has eight, and each layer asks for them again


class TritonBackend(TorchBackend):
    """`api.Backend` in Triton. device: None = the first GPU. dtype: bfloat16 or float32; rope tables are float32 in both."""

    name = "triton"

    def __init__(self, device: str | None = None, dtype: torch.dtype = torch.bfloat16) -> None:
        if device is None and not torch.cuda.is_available():
            raise BackendUnavailable("interpreter only: no CUDA device")
        if device == "cpu" and not INTERPRETED:
            raise BackendUnavailable("on a CPU Triton is interpreted: set TRITON_INTERPRET=1 before triton is imported")
        if dtype not in (torch.bfloat16, torch.float32):
            raise InvalidConfig(f"dtype is {dtype}; expected torch.bfloat16 or torch.float32")
        super().__init__(device or "cuda:0", dtype)
        self._moved: dict[bytes, Tensor] = {}

    def prepare(self, weights: Mapping[str, SourceWeight]) -> dict[str, Tensor]:
        tables = {name: w for name, w in weights.items() if name.startswith("rope.")}
        rest = super().prepare({name: w for name, w in weights.items() if name not in tables})
        return rest | {name: torch.tensor(w, dtype=torch.float32, device=self.device) for name, w in tables.items()}

    def new_kv_cache(self, shape: tuple[int, int, int, int, int, int], dtype: str = "float32") -> Tensor:
        if dtype == "int8":
            raise InvalidConfig("the triton backend has no int8 KV pool; expected a float one, or another backend")
        return super().new_kv_cache(shape, dtype)

    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    silu_and_mul = staticmethod(silu_and_mul)
    softmax = staticmethod(softmax)

    def rope(self, x: Tensor, positions: np.ndarray, cos: Tensor, sin: Tensor) -> Tensor:
        check_ids("position", positions, len(cos))
        return rope(x, self._ids(positions), cos, sin)

    def store_kv(self, k: Tensor, v: Tensor, kv: Tensor, slot_mapping: np.ndarray) -> None:
        check_ids("slot", slot_mapping, kv.shape[1] * kv.shape[3])
        store_kv(k, v, kv, self._ids(slot_mapping))

    def paged_attention(self, q: Tensor, kv: Tensor, batch: ForwardBatch, scale: float) -> Tensor:
        queries, blocks = np.diff(batch.query_start), np.diff(batch.block_table_start)
        check_ids("query_start", batch.query_start, len(q) + 1)
        check_ids("block_table_start", batch.block_table_start, len(batch.block_tables) + 1)
        check_ids("block id", batch.block_tables, kv.shape[1])
        check_ids("position", batch.positions, int(blocks.max(initial=0)) * kv.shape[3])
        if not (batch.positions < np.repeat(blocks * kv.shape[3], queries)).all():
            raise ValueError("position out of range: a token's lies behind the block table of its sequence")
        indices = batch.positions, batch.query_start, batch.block_tables, batch.block_table_start
        return paged_attention(
            q, kv, *map(self._ids, indices), scale=scale, max_query_len=int(queries.max(initial=0)),
            max_context_len=int(batch.positions.max(initial=0)) + 1,
        )  # fmt: skip

    def topk_softmax(self, router_logits: Tensor, k: int, renormalize: bool) -> tuple[Tensor, np.ndarray]:
        weights, ids = topk_softmax(router_logits, k, renormalize)
        return weights, ids.cpu().numpy()

    def _ids(self, ids: np.ndarray) -> Tensor:
        """The array on the device: moved once, not once a layer, and known again by what it holds."""
        key = ids.astype(np.int64, copy=False).tobytes()
        if key not in self._moved:
            if len(self._moved) == REMEMBERED:
                del self._moved[next(iter(self._moved))]  # the oldest
            self._moved[key] = torch.tensor(ids, dtype=torch.int64, device=self.device)
        return self._moved[key]
