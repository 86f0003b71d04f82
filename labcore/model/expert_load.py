"""Who does the work in a model with experts, and what it costs: recorded routing counted, and what is to be expected before any.

A step reads each touched expert whole, for one token or for a hundred. Under routing that is uniform and independent, an expert
is missed by b tokens with probability (1 - k/E)^b. Real routing is neither: a batch then touches fewer experts, and unevenly.
Limits: costs count weights, in `itemsize` bytes each; the KV cache and activations are the same as without experts.

    >>> expected_experts(8, 2, 4)             # of 8 experts with 2 a token, those that 4 tokens touch
    5.46875
    >>> balance(np.array([6, 2, 0, 0])).max_over_mean
    3.0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numpy as np

from labcore.core.config import ModelConfig, MoEConfig
from labcore.core.errors import InvalidConfig
from labcore.kernels.api import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Where tokens went, in the order they were computed: expert_ids and weights (layers, tokens, k), the best expert first."""

    expert_ids: np.ndarray
    weights: np.ndarray
    num_experts: int

    @property
    def tokens_per_expert(self) -> np.ndarray:
        """int64 (layers, num_experts)."""
        return np.array([np.bincount(layer.ravel(), minlength=self.num_experts) for layer in self.expert_ids])


class RoutingLog:
    """A router observer that keeps what it is told: `model.router_observer = RoutingLog(model.backend.to_numpy)`."""

    def __init__(self, to_numpy: Callable[[Array], np.ndarray]) -> None:
        self._to_numpy = to_numpy
        self._told: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}

    def __call__(self, layer: int, expert_ids: np.ndarray, weights: Array) -> None:
        self._told.setdefault(layer, []).append((expert_ids, self._to_numpy(weights)))

    def routing(self, moe: MoEConfig) -> Routing:
        """All that was told so far, of every step. InvalidConfig: nothing was."""
        if not self._told:
            raise InvalidConfig("no router has run; expected the log to be the observer of a model with experts, and a step")
        layers = [[np.concatenate(parts) for parts in zip(*self._told[layer], strict=True)] for layer in sorted(self._told)]
        expert_ids, weights = (np.stack(parts) for parts in zip(*layers, strict=True))  # (layers, tokens, k)
        return Routing(expert_ids=expert_ids, weights=weights, num_experts=moe.num_experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """How evenly experts are used. Even: 1, 0 and 1. All tokens to one of E: E, sqrt(E - 1) and 0."""

    max_over_mean: float  # where each expert has a machine of its own, all wait for the fullest
    coefficient_of_variation: float  # standard deviation over mean
    entropy: float  # of an expert's share of the work, over the logarithm of their number


def balance(tokens_per_expert: np.ndarray) -> Balance:
    """Of one layer's counts (num_experts,). InvalidConfig: no token at all."""
    if not (total := tokens_per_expert.sum()) > 0:
        raise InvalidConfig(f"{len(tokens_per_expert)} experts have {total} tokens; expected some")
    shares = tokens_per_expert / total * len(tokens_per_expert)  # 1 each, if even
    busy = shares[shares > 0] / len(shares)
    entropy = float(-(busy * np.log(busy)).sum()) / log(len(shares)) if len(shares) > 1 else 1.0
    return Balance(max_over_mean=float(shares.max()), coefficient_of_variation=float(shares.std()), entropy=entropy)


def expected_experts(num_experts: int, num_experts_per_tok: int, num_tokens: int) -> float:
    """Experts of a layer that a batch touches, if routing is uniform and independent: E (1 - (1 - k/E)^b)."""
    return num_experts * (1 - (1 - num_experts_per_tok / num_experts) ** num_tokens)


def expert_parameters(config: ModelConfig) -> int:
    """Weights of one expert of one layer; 0 in a dense model."""
    return 3 * config.hidden_size * config.moe.moe_intermediate_size if config.moe else 0


def parameters_read(config: ModelConfig, experts_per_layer: float) -> float:
    """Weights that a step reads which touches so many experts in each layer: all that are no expert's, and those."""
    idle = config.moe.num_experts - experts_per_layer if config.moe else 0
    return config.num_parameters - config.num_layers * idle * expert_parameters(config)


def active_parameters(config: ModelConfig) -> int:
    """Weights that one token is multiplied with: the A of a name like 30B-A3B."""
    return int(parameters_read(config, config.moe.num_experts_per_tok if config.moe else 0))


def expected_bytes(config: ModelConfig, num_tokens: int, itemsize: int = 4) -> float:
    """Bytes of weights that a step of so many tokens reads, if routing is uniform and independent."""
    touched = expected_experts(config.moe.num_experts, config.moe.num_experts_per_tok, num_tokens) if config.moe else 0
    return itemsize * parameters_read(config, touched)
