"""A feed-forward of many experts, of which each token uses a few, over a backend's operators.

    router logits -> k largest, softmax -> tokens sorted by expert, one product a touched expert -> weighted sum, token by token

A token's result does not depend on its batch mates: an expert's products are row by row, and its outputs are summed in the
order of the token's own ranking, the best expert first. No expert has a capacity, so no token is dropped. Which experts a
step touches is known only when its routers have run: the ids come to the host in each layer.
Sources: Shazeer et al. 2017; Jiang et al. 2024 (Mixtral); Gale et al. 2022 (MegaBlocks: no capacity, no dropped tokens).

    >>> group_by_expert(np.array([[2, 0], [0, 1]]))[0]     # token 0 goes to experts 2 and 0, token 1 to 0 and 1
    [(0, array([0, 1])), (1, array([1])), (2, array([0]))]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from labcore.core.config import MoEConfig
from labcore.kernels.api import Array, Backend, GatedWeights, MoEWeights, Projection, Weight

RouterObserver = Callable[[int, np.ndarray, Array], None]  # (layer, expert ids (T, k), weights (T, k) of the backend's kind)


def no_observer(layer: int, expert_ids: np.ndarray, weights: Array) -> None:
    """The observer that looks at nothing."""


def projection(weights: Mapping[str, Weight], name: str) -> Projection:
    """A matrix and its bias, if it has one."""
    return weights[f"{name}.weight"], weights.get(f"{name}.bias")


def gated_weights(weights: Mapping[str, Weight], prefix: str) -> GatedWeights:
    """The feed-forward whose matrices have this prefix: "model.layers.0.mlp."."""
    return GatedWeights(*(projection(weights, f"{prefix}{part}_proj") for part in GatedWeights._fields))


def moe_weights(weights: Mapping[str, Weight], prefix: str, config: MoEConfig) -> MoEWeights:
    """The experts of the layer whose matrices have this prefix."""
    return MoEWeights(
        router=weights[f"{prefix}gate.weight"],
        experts=tuple(gated_weights(weights, f"{prefix}experts.{expert}.") for expert in range(config.num_experts)),
        shared=gated_weights(weights, f"{prefix}shared_expert.") if config.shared_expert_intermediate_size else None,
        shared_gate=weights.get(f"{prefix}shared_expert_gate.weight"),
    )


def gated(ops: Backend, w: GatedWeights, x: Array) -> Array:
    """down(silu(gate(x)) * up(x)), (rows, hidden) -> (rows, hidden): a dense layer's feed-forward, or one expert's."""
    return ops.linear(ops.silu_and_mul(ops.linear(x, *w.gate), ops.linear(x, *w.up)), *w.down)


def group_by_expert(expert_ids: np.ndarray) -> tuple[list[tuple[int, np.ndarray]], np.ndarray]:
    """From the experts of each token (T, k) to the tokens of each expert, and the way back.

    Returns the touched experts in ascending order, each with its tokens in ascending order; and int64 (T, k): the row of each
    (token, rank) when what the experts make of these tokens stands one below the other.
    """
    order = np.argsort(expert_ids, axis=None, kind="stable")  # the (token, rank) pairs, expert by expert
    touched, first = np.unique(expert_ids.ravel()[order], return_index=True)
    rows = np.empty_like(order)
    rows[order] = np.arange(len(order))
    tokens = np.split(order // expert_ids.shape[1], first[1:])
    return list(zip(touched.tolist(), tokens, strict=True)), rows.reshape(expert_ids.shape)


def experts_forward(ops: Backend, config: MoEConfig, w: MoEWeights, x: Array, layer: int, observer: RouterObserver) -> Array:
    """The feed-forward of all tokens, x (T, hidden) -> (T, hidden); the observer is told where they went."""
    weights, expert_ids = ops.topk_softmax(ops.linear(x, w.router), config.num_experts_per_tok, config.norm_topk_prob)
    observer(layer, expert_ids, weights)
    groups, rows = group_by_expert(expert_ids)
    parts = [gated(ops, w.experts[expert], ops.take_rows(x, tokens)) for expert, tokens in groups]
    shared = None if w.shared is None else (gated(ops, w.shared, x), ops.linear(x, w.shared_gate))
    return ops.combine_experts(parts, rows, weights, shared)
