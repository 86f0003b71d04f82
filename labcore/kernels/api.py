"""The contract between a model and the machine: one ragged batch, a few operators, one protocol.

A model is written once over `Backend`; a backend is numpy, C++, later torch or Triton. Arrays are the backend's own
kind: what `prepare` and the operators return goes back into the operators, and only `to_numpy` takes it out.

    >>> backend = get_backend("native")
    >>> weights = backend.prepare({"norm": np.ones(64, np.float32)})
    >>> backend.rms_norm(x, weights["norm"], eps=1e-5)    # x: (num_tokens, 64) of this backend
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from labcore.quant.int8 import Int8Tensor
from labcore.quant.quantized_tensor import QuantizedTensor

Array = Any  # an array of the backend's own kind
Shared = tuple[Array, Array]  # what a shared expert made of every token (T, hidden), and the logits of its gate (T, 1)
Weight = Any  # what the backend's `prepare` made of a weight
SourceWeight = np.ndarray | QuantizedTensor | Int8Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """One step's work for all sequences: flat, ragged, no padding. No prefill and no decode: only tokens with positions.

    Sequence s owns rows query_start[s] : query_start[s+1] of the token arrays, and entries
    block_table_start[s] : block_table_start[s+1] of block_tables.

    token_ids        int64 (num_tokens,)
    positions        int64 (num_tokens,)     absolute, ascending inside a sequence
    query_start      int64 (num_seqs + 1,)
    context_lens     int64 (num_seqs,)       keys its last query sees = last position + 1
    block_tables     int64 (blocks of all sequences,)
    block_table_start int64 (num_seqs + 1,)
    slot_mapping     int64 (num_tokens,)     where a token's K and V go: block * block_size + offset
    logits_indices   int64 (num_logits,)     rows whose logits are wanted
    """

    token_ids: np.ndarray
    positions: np.ndarray
    query_start: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    block_table_start: np.ndarray
    slot_mapping: np.ndarray
    logits_indices: np.ndarray

    @classmethod
    def of_one_sequence(cls, token_ids: Sequence[int], position: int = 0) -> ForwardBatch:
        """One sequence, these tokens from `position` on, in a pool of one block that is as long; the logits of every token."""
        n = len(token_ids)
        positions = np.arange(position, position + n)
        return cls(
            token_ids=np.array(token_ids, np.int64),
            positions=positions,
            query_start=np.array([0, n]),
            context_lens=np.array([position + n]),
            block_tables=np.zeros(1, np.int64),
            block_table_start=np.array([0, 1]),
            slot_mapping=positions,
            logits_indices=np.arange(n),
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)


Projection = tuple[Weight, Weight | None]  # a matrix (outputs, inputs), and the bias (outputs,) of the models that have one


class GatedWeights(NamedTuple):
    """A gated feed-forward (SwiGLU), as the backend prepared it: a dense layer's, or one expert's."""

    gate: Projection  # (intermediate, hidden)
    up: Projection  # (intermediate, hidden)
    down: Projection  # (hidden, intermediate)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEWeights:
    """A feed-forward of many experts, as the backend prepared it."""

    router: Weight  # (num_experts, hidden)
    experts: tuple[GatedWeights, ...]
    shared: GatedWeights | None  # what every token passes, of the models that have it
    shared_gate: Weight | None  # (1, hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer of a Llama decoder, as the backend prepared it."""

    input_norm: Weight  # (hidden,)
    post_norm: Weight  # (hidden,)
    q_norm: Weight | None  # (head_dim,), of the models that have one
    k_norm: Weight | None  # (head_dim,)
    q: Projection  # (heads x head_dim, hidden)
    k: Projection  # (kv_heads x head_dim, hidden)
    v: Projection  # (kv_heads x head_dim, hidden)
    o: Projection  # (hidden, heads x head_dim)
    mlp: GatedWeights | MoEWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """A whole decoder, as the backend prepared it."""

    embedding: Weight  # (vocab, hidden)
    layers: tuple[LayerWeights, ...]
    final_norm: Weight  # (hidden,)
    head: Weight  # (vocab, hidden); the embedding itself where the two are tied
    cos: Weight  # (max_len, head_dim / 2)
    sin: Weight


DecoderForward = Callable[[ForwardBatch, Array], np.ndarray]  # (batch, kv pool of all layers) -> logits (num_logits, vocab)


class Backend(Protocol):
    """The operators a decoder needs. T = tokens in the batch; shapes are (rows, columns), C-contiguous.

    Every operator returns a new array, except `store_kv`, which writes into the pool. A wrong shape, dtype or stride
    raises TypeError or ValueError naming what was expected; nothing is copied silently.
    `exact` promises batch invariance: an output row has the same bits whatever else is in the batch.
    A backend may also offer `decoder_forward(config: ModelConfig, weights: DecoderWeights) -> DecoderForward | None`: a whole
    step in one call, with the very results of the operators one by one; None where it has none for such a model.
    """

    name: str
    exact: bool

    def prepare(self, weights: Mapping[str, SourceWeight]) -> dict[str, Weight]:
        """Bring weights into the form this backend computes with (packs, converts, moves to a device), once.

        Matrices named "rope.*" are tables to look up, not operands of `linear`. A result may share memory with its source.
        """
        ...

    def new_kv_cache(self, shape: tuple[int, int, int, int, int, int], dtype: str = "float32") -> Array:
        """A KV pool: (layer, k|v, block, kv_head, slot, head_dim). Indexing it by layer gives what the operators take.

        dtype "int8": an int8 pool whose last axis is head_dim + 4, the quants of a (token, kv head) and then the bytes of their
        float32 scale, in the machine's order (`integer_reference.quantize_kv`).
        """
        ...

    def embedding(self, token_ids: np.ndarray, weight: Weight) -> Array:
        """Rows of weight (vocab, hidden): token_ids (T,) -> (T, hidden)."""
        ...

    def rms_norm(self, x: Array, weight: Weight, eps: float) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight, per row. (T, hidden). Zhang & Sennrich 2019."""
        ...

    def add_rms_norm(self, x: Array, residual: Array, weight: Weight, eps: float) -> tuple[Array, Array]:
        """(rms_norm(x + residual), x + residual): the sum is read once for both."""
        ...

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        """x (T, K) times weight (N, K) transposed, plus bias (N,) -> (T, N). The weight is dense or quantized."""
        ...

    def rope(self, x: Array, positions: np.ndarray, cos: Weight, sin: Weight) -> Array:
        """Rotary embedding, halves convention. x (T, heads, head_dim); cos, sin (max_len, head_dim / 2). Su et al. 2021."""
        ...

    def store_kv(self, k: Array, v: Array, kv: Array, slot_mapping: np.ndarray) -> None:
        """Write k, v (T, kv_heads, head_dim) into one layer's pool kv (2, blocks, kv_heads, slots, head_dim)."""
        ...

    def paged_attention(self, q: Array, kv: Array, batch: ForwardBatch, scale: float) -> Array:
        """Causal attention of q (T, heads, head_dim) over each sequence's blocks -> (T, heads, head_dim).

        A query at position p sees keys 0..p. Query head h reads kv head h // (heads / kv_heads). Kwon et al. 2023.
        """
        ...

    def silu_and_mul(self, gate: Array, up: Array) -> Array:
        """gate * sigmoid(gate) * up, elementwise (T, F). Shazeer 2020."""
        ...

    def softmax(self, x: Array) -> Array:
        """e^(x - max) / sum of e^(x - max), per row. (T, N). No part of a decoder step: samplers use it."""
        ...

    def topk_softmax(self, router_logits: Array, k: int, renormalize: bool) -> tuple[Array, np.ndarray]:
        """The k largest of each row: their softmax weights (T, k) and their ids, int64 (T, k) on the host, the largest first.

        router_logits (T, num_experts). The softmax is over the whole row, with `renormalize` over the k alone. Of equals the
        lower id goes first; a NaN stands where -inf would, and makes all weights of its row NaN. Raises ValueError for another k.
        """
        ...

    def combine_experts(self, parts: Sequence[Array], rows: np.ndarray, weights: Array, shared: Shared | None = None) -> Array:
        """weights[t, 0] y[rows[t, 0]] + weights[t, 1] y[rows[t, 1]] + ..., summed in this order: (T, hidden).

        y is the parts (rows of each expert, hidden) one below the other; rows int64 (T, k), weights (T, k). What the shared
        expert made is weighed with the sigmoid of its gate, and added last.
        """
        ...

    def take_rows(self, x: Array, rows: np.ndarray) -> Array:
        """x[rows]: the rows whose logits are wanted."""
        ...

    def to_numpy(self, x: Array) -> np.ndarray:
        """The array on the host."""
        ...
