"""Checks on experts: the engine groups and counts.

>>> check_touched(lambda num_experts, k, tokens: None).right
False
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from labcore.core.config import ModelConfig, MoEConfig
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike
from labcore.model.expert_load import active_parameters, expected_experts
from labcore.model.moe import group_by_expert

COUNTED = "the engine counts"


def check_touched(answer: Answer) -> Verdict:
    """answer(num_experts, k, tokens): experts that a batch touches on average, if routing is even and independent."""
    cases = [(8, 2, 1), (8, 2, 4), (8, 2, 64), (128, 8, 32), (60, 4, 16), (4, 4, 1)]

    def fault(got: Any, num_experts: int, k: int, tokens: int) -> str:
        right = expected_experts(num_experts, k, tokens)
        if isinstance(got, int | float | np.number) and abs(got - right) < 1e-6 * right:
            return ""
        all_apart = " (may two tokens not choose the same expert?)" if got == min(num_experts, k * tokens) else ""
        return f"your function says {got!r}, {COUNTED} {right:.6g}{all_apart}"

    return judge(answer, named("num_experts, k, tokens", *cases), fault, "the formula of the engine")


def check_active(answer: Answer) -> Verdict:
    """answer(hidden_size, inner_size, num_layers, num_experts, k, total): weights that a token is multiplied with.

    inner_size: of an expert. total: all weights of the model, of which only experts are left out.
    """
    shapes = [(256, 384, 4, 8, 2), (4096, 14336, 32, 8, 2), (2048, 768, 48, 128, 8), (64, 32, 1, 4, 4)]
    configs = {shape: _config(*shape) for shape in shapes}

    def right(*case: int) -> int:
        return active_parameters(configs[case[:5]])  # type: ignore[index]

    names = "hidden_size, inner_size, num_layers, num_experts, k, total"
    cases = named(names, *[(*shape, config.num_parameters) for shape, config in configs.items()])
    return judge(answer, cases, unlike(right, COUNTED, "weights"), "the engine")


def check_groups(answer: Answer) -> Verdict:
    """answer(expert_ids): (expert, its tokens) for each touched expert, both ascending. expert_ids: k experts for each token."""
    cases = [([[2, 0], [0, 1]],), ([[1]],), ([[3, 1], [3, 0], [1, 3]],), ([[0], [0], [0]],), ([[7, 2, 5], [5, 7, 2], [2, 0, 7]],)]

    def right(expert_ids: list[list[int]]) -> tuple[Any, ...]:
        return tuple((expert, tuple(tokens.tolist())) for expert, tokens in group_by_expert(np.array(expert_ids))[0])

    return judge(answer, named("expert_ids", *cases), unlike(right, "the engine has"), "the engine")


def _config(hidden_size: int, inner_size: int, num_layers: int, num_experts: int, k: int) -> ModelConfig:
    experts = MoEConfig(num_experts=num_experts, num_experts_per_tok=k, moe_intermediate_size=inner_size, norm_topk_prob=True)
    return replace(ModelConfig.lab(), hidden_size=hidden_size, num_layers=num_layers, moe=experts)
