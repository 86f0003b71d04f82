"""Metadata to configuration, ggml's names and row order to Hugging Face's, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from labcore.core.config import ModelConfig
from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.checkpoint import required_tensors
from labcore.loaders.llama_gguf import huggingface_name, load_llama, rows_in_halves
from labcore.loaders.load import load_checkpoint
from labcore.quant.quantized_tensor import QuantizedTensor

WriteGGUF = Callable[..., Path]


def permute(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of q and k: the way there, of which the loader is the way back."""
    head = (num_heads, 2, weights.shape[0] // num_heads // 2)
    return weights.reshape(*head, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 2), (3, 64), (9, 64), (8, 32), (5, 6)])
def test_rows_in_halves_undoes_permute(num_heads: int, head_dim: int) -> None:
    weights = np.arange(num_heads * head_dim * 3.0).reshape(-1, 3)
    restored = rows_in_halves(permute(weights, num_heads), num_heads)
    assert isinstance(restored, np.ndarray)
    assert np.array_equal(restored, weights)


def test_rows_of_a_block_format_move_whole() -> None:
    weights = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    packed = gguf.quants.quantize(permute(weights, 2), gguf.GGMLQuantizationType.Q4_1)
    restored = rows_in_halves(QuantizedTensor("Q4_1", (16, 64), packed), 2)
    assert isinstance(restored, QuantizedTensor)
    expected = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_1)
    assert np.array_equal(restored.data, expected) and restored.data.flags.c_contiguous


def rotate_neighbours(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    even, odd = x[0::2], x[1::2]
    return np.stack([even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)], 1).ravel()


def rotate_halves(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2)
    return np.concatenate([first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)])


def test_scores_are_those_of_ggml() -> None:
    """Rotating neighbours in ggml's rows and halves in ours gives the same scores between positions."""
    draw = np.random.default_rng(0)
    q_file, k_file, x = draw.standard_normal((8, 4)), draw.standard_normal((8, 4)), draw.standard_normal(4)
    q, k = rows_in_halves(q_file, 1), rows_in_halves(k_file, 1)
    assert isinstance(q, np.ndarray) and isinstance(k, np.ndarray)
    at = [position * 10000.0 ** (-np.arange(4) / 4) for position in (3, 7)]
    ggml = rotate_neighbours(q_file @ x, at[1]) @ rotate_neighbours(k_file @ x, at[0])
    ours = rotate_halves(q @ x, at[1]) @ rotate_halves(k @ x, at[0])
    assert np.isclose(ggml, ours, rtol=1e-12)


def test_names_are_ggml_s() -> None:
    """Every tensor of a Llama decoder, against gguf's own table of names."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 4)
    expected = {str(table.get_name(name, (".weight",))): name for name in required_tensors(ModelConfig.lab())}
    expected["output.weight"] = "lm_head.weight"
    assert {ggml: huggingface_name(ggml) for ggml in expected} == expected


def test_the_real_model(smollm2_gguf_reader: gguf.GGUFReader) -> None:
    checkpoint = load_checkpoint("smollm2")
    assert checkpoint.config == ModelConfig(
        name="smollm2", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3,
        head_dim=64, max_model_len=8192, rope_theta=100000.0, rms_norm_eps=float(np.float32(1e-5)),
    )  # fmt: skip
    assert checkpoint.config.num_parameters == 134_515_008
    assert checkpoint.tied and len(checkpoint.tensors) == 272
    reader = {tensor.name: tensor for tensor in smollm2_gguf_reader.tensors}
    formats = set()
    for layer in (0, 29):
        for part, heads in (("q", 9), ("k", 3), ("v", 0)):
            ours = checkpoint.tensors[f"model.layers.{layer}.self_attn.{part}_proj.weight"]
            theirs = reader[f"blk.{layer}.attn_{part}.weight"].data
            assert isinstance(ours, QuantizedTensor)
            formats.add(ours.format)
            assert np.array_equal(permute(ours.data, heads) if heads else ours.data, theirs)
    assert formats == {"Q4_1"}


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_every_format(write_gguf: WriteGGUF, format: str) -> None:
    checkpoint = load_llama(write_gguf(default=format))
    kinds = {type(tensor) for name, tensor in checkpoint.tensors.items() if "proj" in name}
    assert kinds == ({QuantizedTensor} if format.startswith("Q") else {np.ndarray})
    assert all(tensor.dtype == np.float32 for tensor in checkpoint.tensors.values() if isinstance(tensor, np.ndarray))


def test_defaults(write_gguf: WriteGGUF) -> None:
    """No kv heads: as many as heads. No frequency base: 10,000. No head size: hidden over heads."""
    square = {"blk.0.attn_k.weight": np.ones((32, 32), np.float32), "blk.0.attn_v.weight": np.ones((32, 32), np.float32)}
    config = load_llama(write_gguf(metadata={"llama.attention.head_count_kv": None}, changed=square)).config
    assert (config.name, config.num_kv_heads, config.rope_theta, config.head_dim) == ("small", 4, 10000.0, 8)


def test_head_size_apart_from_hidden(write_gguf: WriteGGUF) -> None:
    def ones(*shape: int) -> np.ndarray:
        return np.ones(shape, np.float32)

    changed = {f"blk.0.attn_{part}.weight": ones(rows, 32) for part, rows in (("q", 64), ("k", 32), ("v", 32))}
    path = write_gguf(metadata={"llama.rope.dimension_count": 16}, changed=changed | {"blk.0.attn_output.weight": ones(32, 64)})
    assert load_llama(path).config.head_dim == 16


def test_head(write_gguf: WriteGGUF) -> None:
    """Absent: tied. Present: taken, and its shape is checked."""
    assert load_llama(write_gguf()).tied
    head = np.ones((19, 32), np.float32)
    assert not load_llama(write_gguf(changed={"output.weight": head})).tied
    with pytest.raises(InvalidCheckpoint, match=r"lm_head.weight has shape \(18, 32\); expected \(19, 32\)"):
        load_llama(write_gguf(changed={"output.weight": head[:18]}))


def missing(name: str) -> dict[str, Any]:
    return {"changed": {name: None}}


def metadata(key: str, value: Any) -> dict[str, Any]:
    return {"metadata": {key: value}}


def tensor(name: str, *shape: int) -> dict[str, Any]:
    return {"changed": {name: np.ones(shape, np.float32)}}


REFUSED: dict[str, dict[str, Any]] = {
    r"model.layers.0.mlp.up_proj.weight is missing; expected one of shape \(32, 32\)": missing("blk.0.ffn_up.weight"),
    "token_embd.weight is missing": missing("token_embd.weight"),
    "model.norm.weight is missing": missing("output_norm.weight"),
    r"q_proj.weight has shape \(64, 32\); expected \(32, 32\)": tensor("blk.0.attn_q.weight", 64, 32),
    r"k_proj.weight has shape \(7, 32\); expected \(16, 32\)": tensor("blk.0.attn_k.weight", 7, 32),
    r"input_layernorm.weight has shape \(31,\); expected \(32,\)": tensor("blk.0.attn_norm.weight", 31),
    "tokenizer has 19 tokens, the embedding 20 rows": tensor("token_embd.weight", 20, 32),
    "model.layers.1.input_layernorm.weight is missing": metadata("llama.block_count", 2),
    "model.layers.1.* is missing": metadata("llama.block_count", 2**32 - 1),
    "blk.0.attn_q.bias' has no place": tensor("blk.0.attn_q.bias", 32),
    "rope_freqs.weight' has no place": tensor("rope_freqs.weight", 4),
    "model.layers.1.input_layernorm.weight' has no place": tensor("blk.1.attn_norm.weight", 32),
    "architecture is 'qwen2'; supported: llama": {"arch": "qwen2"},
    "llama.rope.scaling.type is 'linear'; supported: 'none'": metadata("llama.rope.scaling.type", "linear"),
    "llama.rope.scale_linear is 2.0": metadata("llama.rope.scale_linear", 2.0),
    "llama.expert_count is 8": metadata("llama.expert_count", 8),
    r"llama.expert_count is array\(\[0, 0\]": metadata("llama.expert_count", [0, 0]),
    "keys have 8 dimensions, values 16, 8 are rotated": metadata("llama.attention.value_length", 16),
    r"q_proj.weight has shape \(32, 32\); expected \(16, 32\)": metadata("llama.rope.dimension_count", 4),
    "llama.embedding_length is missing; expected int": metadata("llama.embedding_length", None),
    "llama.block_count is str; expected int": metadata("llama.block_count", "1"),
    "llama.attention.head_count_kv is ndarray; expected int": metadata("llama.attention.head_count_kv", [2]),
    "layer_norm_rms_epsilon is missing": metadata("llama.attention.layer_norm_rms_epsilon", None),
    "rms_norm_eps is nan": metadata("llama.attention.layer_norm_rms_epsilon", float("nan")),
    "rope_theta is 0.0": metadata("llama.rope.freq_base", 0.0),
    "num_heads is 0": {"metadata": {"llama.attention.head_count": 0, "llama.rope.dimension_count": 8}},
    "num_heads 4 is not a multiple of num_kv_heads 3": metadata("llama.attention.head_count_kv", 3),
    r"ggml.model is 'llama'; supported: gpt2": metadata("tokenizer.ggml.model", "llama"),
    "ggml.pre is 'default'; supported: gpt-2, smollm": metadata("tokenizer.ggml.pre", "default"),
    "ggml.pre is missing": metadata("tokenizer.ggml.pre", None),
    "special token 19 is outside the vocabulary of 19": metadata("tokenizer.ggml.eos_token_id", 19),
    "'a' occurs more than once": metadata("tokenizer.ggml.tokens", ["a"] * 19),
    "merge 'a z' .* is not of two tokens": metadata("tokenizer.ggml.merges", ["a z"]),
    "merge 'a b c'": metadata("tokenizer.ggml.merges", ["a b c"]),
    "token_type has 2 entries for 19 tokens": metadata("tokenizer.ggml.token_type", [1, 1]),
}


@pytest.mark.parametrize("says", REFUSED)
def test_refused_by_name(write_gguf: WriteGGUF, says: str) -> None:
    path = write_gguf(**REFUSED[says])
    with pytest.raises(InvalidCheckpoint, match=says) as caught:
        load_llama(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_scaling_none_is_no_scaling(write_gguf: WriteGGUF) -> None:
    plain = {"llama.rope.scaling.type": "none", "llama.rope.scale_linear": 1.0, "llama.expert_count": 0}
    assert load_llama(write_gguf(metadata=plain)).config.num_layers == 1
