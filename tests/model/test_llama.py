"""The decoder and the way it is loaded, on the lab model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labcore.core.config import CacheConfig, ModelConfig
from labcore.core.errors import BackendUnavailable, InvalidCheckpoint, InvalidConfig
from labcore.engine.llm import LLM
from labcore.loaders.load import load_checkpoint
from labcore.model.llama import rope_tables
from labcore.model.weights import load_model


def test_rope_tables_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = ModelConfig.lab()
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=256,
            num_attention_heads=8,
            max_position_embeddings=2048,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        )
    )
    cos, sin = theirs(torch.zeros(1, 1, 256), torch.arange(2048)[None])
    ours = rope_tables(config)
    assert np.abs(ours["rope.cos"] - cos[0, :, :16].numpy()).max() < 2e-4  # theirs is float32: its angles are off by 2048 * 2^-24
    assert np.abs(ours["rope.sin"] - sin[0, :, :16].numpy()).max() < 2e-4


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
