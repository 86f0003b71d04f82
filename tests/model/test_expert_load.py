"""Load and cost of experts: counts of recorded routing, measures at their ends, the formula against dice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import BACKENDS

from labcore.core.config import ModelConfig, MoEConfig
from labcore.core.errors import InvalidConfig
from labcore.engine.llm import LLM
from labcore.engine.sampling_params import SamplingParams
from labcore.lab.equivalence import all_logits
from labcore.model.expert_load import (
    RoutingLog,
    active_parameters,
    balance,
    expected_bytes,
    expected_experts,
    expert_parameters,
    parameters_read,
)
from labcore.model.weights import load_model

LAB_MOE = ModelConfig.lab_moe()
MOE = LAB_MOE.moe or MoEConfig(num_experts=1, num_experts_per_tok=1, moe_intermediate_size=1, norm_topk_prob=True)
MIXTRAL = replace(
    LAB_MOE, vocab_size=32000, hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
    moe=replace(MOE, moe_intermediate_size=14336),
)  # fmt: skip
QWEN3 = replace(
    LAB_MOE, vocab_size=151936, hidden_size=2048, num_layers=48, num_heads=32, num_kv_heads=4, head_dim=128, qk_norm=True,
    moe=replace(MOE, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768),
)  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_log_counts_every_token_in_every_layer(backend: str) -> None:
    model = load_model("lab-moe", backend=BACKENDS[backend]())
    model.router_observer = log = RoutingLog(model.backend.to_numpy)
    with pytest.raises(InvalidConfig, match="no router has run"):
        log.routing(MOE)
    all_logits(model, list(range(30)))
    all_logits(model, [1, 2, 3])
    routing = log.routing(MOE)
    assert routing.expert_ids.shape == routing.weights.shape == (4, 33, 2)
    assert routing.tokens_per_expert.shape == (4, 8) and (routing.tokens_per_expert.sum(axis=1) == 2 * 33).all()
    assert np.allclose(routing.weights.sum(axis=2), 1, atol=1e-6) and (routing.weights[..., 0] >= routing.weights[..., 1]).all()
    assert (routing.expert_ids[..., 0] != routing.expert_ids[..., 1]).all()


def test_a_log_follows_an_engine_and_changes_nothing() -> None:
    llm, params = LLM("lab-moe"), SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    plain = llm.generate(["hello", "the mill"], params)
    llm.model.router_observer = log = RoutingLog(llm.model.backend.to_numpy)
    assert llm.generate(["hello", "the mill"], params) == plain
    prompts = sum(answer.num_prompt_tokens for answer in plain)
    assert log.routing(MOE).expert_ids.shape == (4, prompts + 2 * 4, 2)  # the fifth token is not computed


def test_balance_at_its_ends() -> None:
    even, one = balance(np.full(8, 5)), balance(np.array([0, 0, 9, 0, 0, 0, 0, 0]))
    assert (even.max_over_mean, even.coefficient_of_variation, round(even.entropy, 12)) == (1, 0, 1)
    assert (one.max_over_mean, one.entropy) == (8, 0) and one.coefficient_of_variation == pytest.approx(7**0.5)
    half = balance(np.array([3, 3, 0, 0]))
    assert (half.max_over_mean, half.coefficient_of_variation, half.entropy) == (2, 1, pytest.approx(0.5))
    assert balance(np.array([4])).entropy == 1
    with pytest.raises(InvalidConfig, match="3 experts have 0 tokens"):
        balance(np.zeros(3, np.int64))


def test_expected_experts_against_dice() -> None:
    rng = np.random.default_rng(0)
    for experts, k, tokens in ((8, 2, 1), (8, 2, 4), (60, 4, 16), (128, 8, 64), (5, 5, 3)):
        throws = rng.random((2000, tokens, experts)).argsort(axis=2)[:, :, :k].reshape(2000, -1)
        seen = np.mean([len(set(throw)) for throw in throws.tolist()])
        assert expected_experts(experts, k, tokens) == pytest.approx(seen, rel=0.01)
    assert expected_experts(8, 2, 1) == 2 and expected_experts(8, 2, 0) == 0


def test_parameters_are_those_that_models_are_named_by() -> None:
    """Mixtral 8x7B has 46.7 billion, 12.9 of them active; Qwen3-30B-A3B 30.5 and 3.3. Each has a head of its own beside."""
    for config, total, active in ((MIXTRAL, 46.7, 12.9), (QWEN3, 30.5, 3.35)):
        head = config.vocab_size * config.hidden_size
        assert (config.num_parameters + head) / 1e9 == pytest.approx(total, abs=0.05)
        assert (active_parameters(config) + head) / 1e9 == pytest.approx(active, abs=0.05)
    assert active_parameters(ModelConfig.lab()) == ModelConfig.lab().num_parameters
    assert active_parameters(LAB_MOE) == ModelConfig.lab().num_parameters + 4 * 8 * 256  # as much arithmetic, and the routers


def test_bytes_of_a_step() -> None:
    assert expert_parameters(LAB_MOE) == 3 * 256 * 384 and expert_parameters(ModelConfig.lab()) == 0
    assert expected_bytes(LAB_MOE, 1) == 4 * active_parameters(LAB_MOE)
    assert expected_bytes(LAB_MOE, 10**6) == 4 * LAB_MOE.num_parameters == 4 * parameters_read(LAB_MOE, 8)
    assert expected_bytes(LAB_MOE, 4, itemsize=1) == parameters_read(LAB_MOE, 5.46875)
    assert expected_bytes(ModelConfig.lab(), 1) == expected_bytes(ModelConfig.lab(), 99) == 4 * ModelConfig.lab().num_parameters
