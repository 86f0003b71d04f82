"""Configurations refuse what cannot work, naming the field and what was expected."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from labcore.core.config import CacheConfig, EngineConfig, LinearRope, Llama3Rope, ModelConfig, SchedulerConfig
from labcore.core.errors import InvalidConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 0), ("hidden_size", -1), ("vocab_size", 1.5), ("num_heads", True), ("num_kv_heads", 3), ("head_dim", 7),
        ("max_model_len", 1 << 32), ("rope_theta", float("nan")), ("rope_theta", 0.0),
        ("rms_norm_eps", float("nan")), ("rms_norm_eps", 1.0),
    ],
)  # fmt: skip
def test_model_config_names_the_bad_field(field: str, value: object) -> None:
    with pytest.raises(InvalidConfig, match=field):
        dataclasses.replace(ModelConfig.lab(), **{field: value})


@pytest.mark.parametrize(
    "fields", [{"block_size": 0}, {"num_blocks": -4}, {"num_blocks": "8"}, {"num_blocks": 10**9}, {"kv_dtype": "int4"}]
)
def test_cache_config_names_the_bad_field(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(fields))):
        CacheConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields", [{"max_num_seqs": 0}, {"max_num_batched_tokens": 0}, {"max_chunk_tokens": 0}, {"watermark_blocks": -1}]
)
def test_scheduler_config_names_the_bad_field(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(fields))):
        SchedulerConfig(**fields)


@pytest.mark.parametrize("seed", [-1, 1 << 32, "a", 1.5])
def test_engine_config_names_a_bad_seed(seed: object) -> None:
    with pytest.raises(InvalidConfig, match="seed"):
        EngineConfig(seed=seed)  # type: ignore[arg-type]


def test_derived_sizes() -> None:
    config = ModelConfig.lab()
    assert (config.q_size, config.kv_size) == (256, 64)
    assert config.kv_bytes_per_token() == 2 * 4 * 64 * 4  # K and V, layers, kv size, float32
    assert CacheConfig(block_size=16, num_blocks=8).num_slots == 128
    assert SchedulerConfig(max_num_batched_tokens=8, max_chunk_tokens=64).chunk_limit == 8


def test_a_file_may_not_claim_positions_without_end() -> None:
    """17 kB of weights with heads of 512 and a million positions would ask for gigabytes of cos and sin."""
    with pytest.raises(InvalidConfig, match="max_model_len is 1048576 and head_dim 512"):
        dataclasses.replace(ModelConfig.lab(), max_model_len=1 << 20, head_dim=512)
    assert dataclasses.replace(ModelConfig.lab(), max_model_len=1 << 20, head_dim=128).head_dim == 128


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        (lambda: LinearRope(factor=0.0), "LinearRope.factor is 0.0"),
        (lambda: LinearRope(factor=float("nan")), "LinearRope.factor is nan"),
        (lambda: llama3(low_freq_factor=4.0), "expected the first to be less"),
        (lambda: llama3(original_max_model_len=0), "original_max_model_len is 0"),
    ],
)
def test_a_rope_that_cannot_be_is_named(rope: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        rope()


def llama3(**fields: Any) -> Llama3Rope:
    plain = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_model_len": 64}
    return Llama3Rope(**{**plain, **fields})


def test_biases_are_of_projections() -> None:
    with pytest.raises(InvalidConfig, match=r"biases name 'self_attn\.x_proj'"):
        dataclasses.replace(ModelConfig.lab(), biases=frozenset({"self_attn.x_proj"}))
    with pytest.raises(InvalidConfig, match=r"biases name 'mlp\.up_proj'; expected some of self_attn"):
        dataclasses.replace(ModelConfig.lab_moe(), biases=frozenset({"mlp.up_proj"}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_experts", 0), ("num_experts", 1), ("num_experts", 4097), ("num_experts", True), ("num_experts_per_tok", 0),
        ("num_experts_per_tok", 9), ("moe_intermediate_size", -1), ("shared_expert_intermediate_size", -1),
        ("shared_expert_intermediate_size", 0.5),
    ],
)  # fmt: skip
def test_experts_that_cannot_be_are_named(field: str, value: object) -> None:
    experts = ModelConfig.lab_moe().moe
    assert experts
    with pytest.raises(InvalidConfig, match=field):
        dataclasses.replace(experts, **{field: value})


def test_the_matrices_of_experts() -> None:
    """The lab model's own, with 8 experts of 3 matrices and a router in the place of 3 matrices."""
    dense, experts = ModelConfig.lab(), ModelConfig.lab_moe()
    assert len(dense.projections) == 7 and len(experts.projections) == 4 + 1 + 8 * 3
    assert list(experts.projections)[:6] == [*list(dense.projections)[:4], "mlp.gate", "mlp.experts.0.gate_proj"]
    assert experts.projections["mlp.experts.7.down_proj"] == (256, 384)
    assert experts.moe
    shared = dataclasses.replace(experts.moe, shared_expert_intermediate_size=9).matrices(256)
    assert shared["mlp.shared_expert.up_proj"] == (9, 256) and shared["mlp.shared_expert_gate"] == (1, 256)
