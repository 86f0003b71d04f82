"""The decoder and the way it is loaded, on the lab model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labcore.core.config import CacheConfig, ModelConfig
from labcore.core.errors import BackendUnavailable, InvalidCheckpoint, InvalidConfig
from labcore.engine.llm import LLM
from labcore.loaders.fields import Fields, read_json
from labcore.loaders.llama_safetensors import read_config
from labcore.loaders.load import load_checkpoint
from labcore.model.llama import rope_tables
from labcore.model.weights import load_model

TRAINED = 2048  # positions
ROPES: dict[str, dict[str, Any]] = {
    "none": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear that stretches": {"rope_type": "linear", "factor": 0.5},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": TRAINED,
    },
    "llama3 of a shorter context": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 5.0,
        "original_max_position_embeddings": TRAINED // 8,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED},
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 32, "long_factor": [4.0] * 32,
        "original_max_position_embeddings": TRAINED,
    },
}  # fmt: skip
NOT_SUPPORTED = ("dynamic", "yarn", "longrope")
SIZES = {
    "vocab_size": 300, "hidden_size": 512, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 4 * TRAINED,
}  # fmt: skip


def config_of(tmp_path: Path, rope: dict[str, Any], theta: float) -> ModelConfig:
    """A rope as transformers writes it to a config.json, and as it is read."""
    from transformers import LlamaConfig

    LlamaConfig(**SIZES, rope_parameters=rope | {"rope_theta": theta}).save_pretrained(tmp_path)
    return read_config(Fields("config.json:", read_json(tmp_path / "config.json")), "tiny")


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("rope", [rope for rope in ROPES if rope not in NOT_SUPPORTED])
def test_rope_tables_follow_transformers(tmp_path: Path, rope: str, theta: float) -> None:
    """Cosines and sines in float64 from transformers' frequencies, at positions around the trained length and beyond it."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaRotaryEmbedding(LlamaConfig(**SIZES, rope_parameters=ROPES[rope] | {"rope_theta": theta}))
    assert theirs.attention_scaling == 1.0
    frequencies = theirs.inv_freq.double().numpy()  # computed in float32: angles are off by a few 2^-24 of themselves
    ours = rope_tables(config_of(tmp_path, ROPES[rope], theta))
    for position in (0, 1, TRAINED - 1, TRAINED, 2 * TRAINED, 4 * TRAINED - 1):
        angles = position * frequencies
        assert (np.abs(ours["rope.cos"][position] - np.cos(angles)) <= 1e-6 * angles).all(), position
        assert (np.abs(ours["rope.sin"][position] - np.sin(angles)) <= 1e-6 * angles).all(), position


def test_ropes_differ(tmp_path: Path) -> None:
    """The scalings that are compared above are not one and the same."""
    kept = [rope for rope in ROPES if rope not in NOT_SUPPORTED]
    tables = [rope_tables(config_of(tmp_path, ROPES[rope], 500000.0))["rope.cos"][TRAINED] for rope in kept]
    assert all(np.abs(a - b).max() > 0.1 for i, a in enumerate(tables) for b in tables[:i])


@pytest.mark.parametrize("rope", NOT_SUPPORTED)
def test_a_scaling_that_depends_on_more_is_refused(tmp_path: Path, rope: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=f"rope_type is '{rope}'; supported: default, linear, llama3"):
        config_of(tmp_path, ROPES[rope], 10000.0)


def test_the_lab_model_equals_transformers_on_the_same_weights() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint, c = load_checkpoint("lab"), ModelConfig.lab()
    hf = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
            num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads,
            head_dim=c.head_dim, rms_norm_eps=c.rms_norm_eps,
            max_position_embeddings=c.max_model_len, rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
            tie_word_embeddings=True,
        )
    ).double().eval()  # fmt: skip
    missing = hf.load_state_dict({k: torch.from_numpy(np.array(v)).double() for k, v in checkpoint.tensors.items()}, strict=False)
    assert missing.missing_keys == ["lm_head.weight"]
    hf.tie_weights()
    tokens = list(range(60, 140))
    with torch.inference_mode():
        theirs = hf(torch.tensor([tokens])).logits[0, -1].numpy()
    ours: list[np.ndarray] = []
    model = load_model(checkpoint, backend="reference")
    forward = model.forward
    model.forward = lambda batch, kv: ours.append(forward(batch, kv)) or ours[-1]  # type: ignore[method-assign]
    LLM(model).generate(tokens)
    assert np.abs(ours[0][0] - theirs).max() / np.abs(theirs).max() < 1e-4  # their rope table is float32


def test_parameters_are_counted() -> None:
    checkpoint = load_checkpoint("lab")
    assert checkpoint.config.num_parameters == sum(int(np.prod(t.shape)) for t in checkpoint.tensors.values())
    assert load_checkpoint("smollm2").config.num_parameters == 134_515_008


def test_the_pool_has_the_documented_layout() -> None:
    model = load_model("lab", backend="numpy")
    assert model.new_kv_cache(CacheConfig(block_size=8, num_blocks=3)).shape == (4, 2, 3, 2, 8, 32)


def test_bad_names_are_refused() -> None:
    with pytest.raises(InvalidCheckpoint, match="'gpt-9'"):
        load_model("gpt-9")
    with pytest.raises(BackendUnavailable, match="'cuda'"):
        load_model("lab", backend="cuda")
    with pytest.raises(InvalidConfig, match="weights is 'int3'; expected one of packed, f32"):
        load_model("lab", weights="int3")
