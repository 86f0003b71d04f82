"""The C++ backend: float32, threaded, one instruction set chosen at run time, batch-invariant to the last bit.

Each method allocates the result and calls one operator of `cpp/` through one of three doors, which checks dtype, shape and
contiguity in the same words (cpp/include/labkernels/checked.hpp) and raises TypeError or ShapeError.
`LABCORE_ISA=plain|avx2|avx512` forces an instruction set. Neither that nor the number of threads changes what a row depends
on; threads do not change it at all.

    >>> backend = NativeBackend(threads=2)
    >>> backend.isa
    'avx512'
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from labcore.core.config import ModelConfig
from labcore.core.errors import BackendUnavailable, InvalidConfig
from labcore.core.machine import num_cores
from labcore.kernels.api import DecoderForward, DecoderWeights, ForwardBatch, GatedWeights, LayerWeights, Shared, SourceWeight
from labcore.kernels.arguments import check_k
from labcore.kernels.build import DOORS, load
from labcore.kernels.integer_reference import SCALE_BYTES
from labcore.kernels.reference import combined
from labcore.quant.int8 import Int8Tensor
from labcore.quant.quantized_tensor import QuantizedTensor


class NativeBackend:
    """`api.Backend` in C++.

    threads: None = all cores of this process. isa: None = LABCORE_ISA, or the best there is. door: the way into the library,
    one of `DOORS`; the bits are the same through each. reference: the first version of every operator in its header, one
    element at a time, in the place of the last: slow, and what the others are derived from. Raises BackendUnavailable,
    BrokenArtefact, InvalidConfig.
    """

    name = "native"
    exact = True

    def __init__(
        self, *, threads: int | None = None, isa: str | None = None, door: str = "nanobind", reference: bool = False
    ) -> None:
        if door not in DOORS:
            raise InvalidConfig(f"door is {door!r}; expected one of {', '.join(DOORS)}")
        self._module = load(DOORS[door])
        threads = num_cores() if threads is None else threads
        if not isinstance(threads, int):
            raise InvalidConfig(f"threads is {threads!r}; expected a whole number from 1 to 1024")
        try:
            self._operators = self._module.Operators(isa or os.environ.get("LABCORE_ISA", ""), threads, reference)
        except (ValueError, RuntimeError) as error:
            raise InvalidConfig(str(error)) from None  # asked for wrongly: no other backend quietly steps in
        self.isa: str = self._operators.isa
        self.threads = threads
        if hasattr(self._operators, "draw"):  # through the other doors a backend has no such methods
            self.draw, self.law = self._draw, self._law

    def prepare(self, weights: Mapping[str, SourceWeight]) -> dict[str, Any]:
        """Matrices (2-D) become packed panels; vectors stay float32. Angles ("rope.*") are tables, not matrices, and stay too."""
        return {name: self._prepare(name, weight) for name, weight in weights.items()}

    def new_kv_cache(self, shape: tuple[int, int, int, int, int, int], dtype: str = "float32") -> np.ndarray:
        if dtype == "int8":
            return np.zeros((*shape[:-1], shape[-1] + SCALE_BYTES), np.int8)
        return np.zeros(shape, np.float32)  # the pages are touched, and so taken, when tokens arrive

    def embedding(self, token_ids: np.ndarray, weight: Any) -> np.ndarray:
        out = np.empty((len(token_ids), weight.shape[1]), np.float32)
        self._operators.embedding(out, token_ids, weight)
        return out

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
        out = np.empty_like(x)
        self._operators.rms_norm(out, x, weight, eps)
        return out

    def add_rms_norm(self, x: np.ndarray, residual: np.ndarray, weight: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
        out, total = np.empty_like(x), np.empty_like(x)
        self._operators.add_rms_norm(out, total, x, residual, weight, eps)
        return out, total

    def linear(self, x: np.ndarray, weight: Any, bias: np.ndarray | None = None) -> np.ndarray:
        out = np.empty((len(x), weight.shape[0]), np.float32)
        self._operators.linear(out, x, weight, bias)
        return out

    def rope(self, x: np.ndarray, positions: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        out = np.empty_like(x)
        self._operators.rope(out, x, positions, cos, sin)
        return out

    def store_kv(self, k: np.ndarray, v: np.ndarray, kv: np.ndarray, slot_mapping: np.ndarray) -> None:
        self._operators.store_kv(kv, k, v, slot_mapping)

    def paged_attention(self, q: np.ndarray, kv: np.ndarray, batch: ForwardBatch, scale: float) -> np.ndarray:
        out = np.empty_like(q)
        self._operators.paged_attention(
            out, q, kv, batch.positions, batch.query_start, batch.block_tables, batch.block_table_start, scale
        )
        return out

    def silu_and_mul(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        out = np.empty_like(gate)
        self._operators.silu_and_mul(out, gate, up)
        return out

    def decoder_forward(self, config: ModelConfig, weights: DecoderWeights) -> DecoderForward | None:
        """The decoder in one native call a step (cpp/include/labkernels/decoder.hpp), equal bit for bit to the operators.

        None through a door that lacks it, and for a model with experts: which weights a step reads is known within it only.
        Raises TypeError or ShapeError for weights that are not this model's.
        """
        if not hasattr(self._module, "Decoder") or config.moe:
            return None
        layers = [self._layer(layer) for layer in weights.layers]
        decoder = self._module.Decoder.of(
            self._operators, config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads, config.head_dim,
            config.rms_norm_eps, layers, weights.embedding, weights.final_norm, weights.head, weights.cos, weights.sin,
        )  # fmt: skip

        def forward(batch: ForwardBatch, kv: np.ndarray) -> np.ndarray:
            logits = np.empty((len(batch.logits_indices), config.vocab_size), np.float32)
            decoder.forward(
                logits, batch.token_ids, batch.positions, batch.query_start, batch.block_tables, batch.block_table_start,
                batch.slot_mapping, batch.logits_indices, kv,
            )  # fmt: skip
            return logits

        return forward

    def softmax(self, x: np.ndarray) -> np.ndarray:
        out = np.empty_like(x)
        self._operators.softmax(out, x)
        return out

    def _draw(
        self, logits: np.ndarray, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, min_p: np.ndarray, u: np.ndarray,
        edit_start: np.ndarray, edit_ids: np.ndarray, edit_values: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """`draw`: a token a row, int64 (rows,); -1 where a row's largest logit is no finite number, or where one is a NaN.

        logits      float32 (rows, vocab), not changed
        temperature float64 (rows,)   0 = greedy: the lowest id among the largest
        top_k       int64 (rows,)     tokens that are kept, the largest first, equal ones by rising id; 0 = all
        top_p       float64 (rows,)   in (0, 1]; of those, kept while the mass before a token is below p of their mass
        min_p       float64 (rows,)   in [0, 1]; of those, kept where the probability is at least this share of the largest
        u           float64 (rows,)   in [0, 1); the token is the first, by rising id, whose cumulative mass is above u of all
        edit_start  int64 (rows + 1,) row r owns edits edit_start[r] : edit_start[r + 1]
        edit_ids    int64 (edits,)    each once in a row
        edit_values float64 (edits,)  what stands in the place of the logit: penalties, biases, bans (-inf)

        A row depends on nothing but itself. The law is that of cpp/include/labkernels/sampling.hpp, in float64. Raises TypeError,
        ShapeError; ValueError for numbers out of range.
        """
        tokens = np.empty(len(logits), np.int64)
        self._operators.draw(tokens, logits, temperature, top_k, top_p, min_p, u, edit_start, edit_ids, edit_values)
        return tokens

    def _law(
        self, logits: np.ndarray, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, min_p: np.ndarray,
        edit_start: np.ndarray, edit_ids: np.ndarray, edit_values: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """`law`: what `draw` draws from, float64 (rows, vocab), a sum of 1 a row; NaN where `draw` gives -1. Takes no u."""
        law = np.empty(logits.shape)
        self._operators.law(law, logits, temperature, top_k, top_p, min_p, edit_start, edit_ids, edit_values)
        return law

    def topk_softmax(self, router_logits: np.ndarray, k: int, renormalize: bool) -> tuple[np.ndarray, np.ndarray]:
        check_k(k, router_logits.shape[1])
        weights, ids = np.empty((len(router_logits), k), np.float32), np.empty((len(router_logits), k), np.int64)
        self._operators.topk_softmax(weights, ids, router_logits, renormalize)
        return weights, ids

    def combine_experts(
        self, parts: Sequence[np.ndarray], rows: np.ndarray, weights: np.ndarray, shared: Shared | None = None
    ) -> np.ndarray:
        return combined(self, parts, rows, weights, shared)

    def take_rows(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return x[rows]

    def to_numpy(self, x: np.ndarray) -> np.ndarray:
        return x

    def _layer(self, layer: LayerWeights) -> tuple[Any, ...]:
        """The weights in the order of `LayerWeights`, those of the feed-forward as if they were its own."""
        assert isinstance(layer.mlp, GatedWeights)
        return *(getattr(layer, field.name) for field in fields(layer) if field.name != "mlp"), *layer.mlp

    def _prepare(self, name: str, weight: SourceWeight) -> Any:
        if isinstance(weight, QuantizedTensor):
            return self._module.PackedMatrix.from_blocks(np.ascontiguousarray(weight.data), weight.format)
        if isinstance(weight, Int8Tensor):
            return self._module.PackedMatrix.from_int8(np.ascontiguousarray(weight.data), np.ascontiguousarray(weight.scales))
        if weight.ndim == 2 and not name.startswith("rope."):
            return self._module.PackedMatrix.from_float32(np.ascontiguousarray(weight, np.float32))
        return np.ascontiguousarray(weight, np.float32)


def runnable_isas() -> list[str]:
    """Instruction sets that this machine runs, best first; none if the kernels are not built. Raises BrokenArtefact."""
    try:
        return load(DOORS["nanobind"]).variants()
    except BackendUnavailable:
        return []
