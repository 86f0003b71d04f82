"""A Llama decoder, written once over a backend's operators; it does no array arithmetic of its own.

    embed -> layers x [ norm, q k v, rope, store, attend, o ; norm, gate up, silu * , down ] -> norm -> head

A model with experts has those of `moe` in the place of [ gate up, silu * , down ].

It sees one ragged batch (`ForwardBatch`) and a KV pool, and knows nothing of requests, caches or schedules.
Source: Touvron et al. 2023 (LLaMA); weights are named as in Hugging Face's `LlamaForCausalLM`.

    >>> model = load_model("lab")
    >>> logits = model.forward(batch, kv)   # (num_logits, vocab_size)
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

import numpy as np

from labcore.core.config import CacheConfig, ModelConfig, MoEConfig
from labcore.core.errors import InvalidConfig
from labcore.kernels.api import (
    Array,
    Backend,
    DecoderForward,
    DecoderWeights,
    ForwardBatch,
    GatedWeights,
    LayerWeights,
    Weight,
)
from labcore.loaders.tokenizer import Tokenizer
from labcore.model.moe import RouterObserver, experts_forward, gated, gated_weights, moe_weights, no_observer, projection


def layer_weights(weights: Mapping[str, Weight], layer: int, moe: MoEConfig | None = None) -> LayerWeights:
    """Layer `layer` of weights that are named as in Hugging Face."""
    prefix = f"model.layers.{layer}."
    return LayerWeights(
        input_norm=weights[f"{prefix}input_layernorm.weight"],
        post_norm=weights[f"{prefix}post_attention_layernorm.weight"],
        q_norm=weights.get(f"{prefix}self_attn.q_norm.weight"),
        k_norm=weights.get(f"{prefix}self_attn.k_norm.weight"),
        q=projection(weights, f"{prefix}self_attn.q_proj"),
        k=projection(weights, f"{prefix}self_attn.k_proj"),
        v=projection(weights, f"{prefix}self_attn.v_proj"),
        o=projection(weights, f"{prefix}self_attn.o_proj"),
        mlp=moe_weights(weights, f"{prefix}mlp.", moe) if moe else gated_weights(weights, f"{prefix}mlp."),
    )


class LlamaModel:
    """The decoder with its weights on a backend, and the tokenizer that came with them."""

    def __init__(self, config: ModelConfig, backend: Backend, weights: Mapping[str, Weight], tokenizer: Tokenizer) -> None:
        """weights: what `backend.prepare` made of the checkpoint's tensors and of `rope_tables(config)`."""
        self.config = config
        self.backend = backend
        self.tokenizer = tokenizer
        self.router_observer: RouterObserver = no_observer
        embedding = weights["model.embed_tokens.weight"]
        self.weights = DecoderWeights(
            embedding=embedding,
            layers=tuple(layer_weights(weights, i, config.moe) for i in range(config.num_layers)),
            final_norm=weights["model.norm.weight"],
            head=weights.get("lm_head.weight", embedding),  # absent: tied to the embedding
            cos=weights["rope.cos"],
            sin=weights["rope.sin"],
        )
        self._forward = self._fastest()

    def _fastest(self) -> DecoderForward:
        make = getattr(self.backend, "decoder_forward", None)
        whole: DecoderForward | None = make(self.config, self.weights) if make else None
        return whole or self.forward_by_operators

    def first_layers(self, num_layers: int) -> LlamaModel:
        """The model without its other layers, on the same weights. Raises InvalidConfig if it has no more than these."""
        if not 1 <= num_layers < self.config.num_layers:
            raise InvalidConfig(f"{num_layers} first layers of {self.config.num_layers}; expected at least 1, and not all")
        part = copy(self)
        part.config = replace(self.config, num_layers=num_layers, name=f"{self.config.name}[:{num_layers}]")
        part.weights = replace(self.weights, layers=self.weights.layers[:num_layers])
        part._forward = part._fastest()
        return part

    def new_kv_cache(self, cache: CacheConfig) -> Array:
        """A pool for this model: (layer, k|v, block, kv_head, slot, head_dim); in int8 as `Backend.new_kv_cache` says."""
        c = self.config
        shape = (c.num_layers, 2, cache.num_blocks, c.num_kv_heads, cache.block_size, c.head_dim)
        return self.backend.new_kv_cache(shape, cache.kv_dtype)

    def forward(self, batch: ForwardBatch, kv: Array) -> np.ndarray:
        """Compute every token of the batch, write its K and V into the pool, return logits (num_logits, vocab_size).

        In one call of the backend where it offers that; else operator by operator, with the same result.
        """
        return self._forward(batch, kv)

    def forward_by_operators(self, batch: ForwardBatch, kv: Array) -> np.ndarray:
        """The decoder as it reads: what `forward` must equal."""
        ops, w, eps = self.backend, self.weights, self.config.rms_norm_eps
        residual = ops.embedding(batch.token_ids, w.embedding)  # (num_tokens, hidden)
        x = ops.rms_norm(residual, w.layers[0].input_norm, eps)
        for i, layer in enumerate(w.layers):
            if i:
                x, residual = ops.add_rms_norm(x, residual, layer.input_norm, eps)
            x = self._attention(layer, x, kv[i], batch)
            x, residual = ops.add_rms_norm(x, residual, layer.post_norm, eps)
            x = self._feed_forward(i, layer, x)
        x, residual = ops.take_rows(x, batch.logits_indices), ops.take_rows(residual, batch.logits_indices)
        x, _ = ops.add_rms_norm(x, residual, w.final_norm, eps)
        return ops.to_numpy(ops.linear(x, w.head))

    def _attention(self, layer: LayerWeights, x: Array, kv: Array, batch: ForwardBatch) -> Array:
        """x (num_tokens, hidden) -> (num_tokens, hidden); writes this layer's K and V first, then reads them back by blocks."""
        ops, c = self.backend, self.config
        q = ops.linear(x, *layer.q).reshape(-1, c.head_dim)  # (num_tokens x heads, head_dim)
        k = ops.linear(x, *layer.k).reshape(-1, c.head_dim)
        v = ops.linear(x, *layer.v).reshape(-1, c.num_kv_heads, c.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = ops.rms_norm(q, layer.q_norm, c.rms_norm_eps), ops.rms_norm(k, layer.k_norm, c.rms_norm_eps)
        q, k = q.reshape(-1, c.num_heads, c.head_dim), k.reshape(-1, c.num_kv_heads, c.head_dim)
        q = ops.rope(q, batch.positions, self.weights.cos, self.weights.sin)
        k = ops.rope(k, batch.positions, self.weights.cos, self.weights.sin)
        ops.store_kv(k, v, kv, batch.slot_mapping)
        out = ops.paged_attention(q, kv, batch, c.head_dim**-0.5)
        return ops.linear(out.reshape(-1, c.q_size), *layer.o)

    def _feed_forward(self, i: int, layer: LayerWeights, x: Array) -> Array:
        """x (num_tokens, hidden) -> (num_tokens, hidden)."""
        if isinstance(layer.mlp, GatedWeights):
            return gated(self.backend, layer.mlp, x)
        assert self.config.moe
        return experts_forward(self.backend, self.config.moe, layer.mlp, x, i, self.router_observer)


def rope_tables(config: ModelConfig) -> dict[str, np.ndarray]:
    """cos and sin of position x frequency, float64 (max_model_len, head_dim / 2). Frequency i: theta^(-2i / head_dim), scaled."""
    trained = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    frequencies = np.array([config.rope_scaling.scaled(frequency) for frequency in trained.tolist()])
    angles = np.arange(config.max_model_len)[:, None] * frequencies
    return {"rope.cos": np.cos(angles), "rope.sin": np.sin(angles, out=angles)}
