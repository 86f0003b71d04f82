"""Metadata to configuration, ggml's names and row order to Hugging Face's, and what is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from loaders.conftest import CONFIG, tensors

from labcore.core.config import PROJECTIONS, LinearRope, Llama3Rope, ModelConfig, PlainRope
from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.checkpoint import HEAD, required_tensors
from labcore.loaders.fields import Fields
from labcore.loaders.llama_gguf import ggml_name, huggingface_name, load_llama, rows_in_halves, rows_in_pairs
from labcore.loaders.llama_safetensors import load_llama_folder, read_config
from labcore.loaders.load import load_checkpoint
from labcore.quant.quantized_tensor import QuantizedTensor

WriteGGUF = Callable[..., Path]


def permute(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to the rows of q and k: the way there, of which the loader is the way back."""
    head = (num_heads, 2, weights.shape[0] // num_heads // 2)
    return weights.reshape(*head, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 2), (3, 64), (9, 64), (8, 32), (5, 6)])
@pytest.mark.parametrize("columns", [(3,), ()])
def test_rows_in_halves_undoes_permute(num_heads: int, head_dim: int, columns: tuple[int, ...]) -> None:
    """Of a matrix, and of a bias."""
    weights = np.arange(num_heads * head_dim * math.prod(columns), dtype=np.float32).reshape(-1, *columns)
    restored, reordered = rows_in_halves(permute(weights, num_heads), num_heads), rows_in_pairs(weights, num_heads)
    assert isinstance(restored, np.ndarray) and isinstance(reordered, np.ndarray)
    assert np.array_equal(restored, weights) and np.array_equal(reordered, permute(weights, num_heads))


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


@pytest.mark.parametrize("architecture", ["LLAMA", "QWEN2", "QWEN3"])
def test_names_are_ggml_s(architecture: str) -> None:
    """Every tensor that a decoder can have, against gguf's own table of names; and back."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture], 4)
    config = replace(ModelConfig.lab(), biases=frozenset(PROJECTIONS), qk_norm=architecture == "QWEN3")
    expected = {name: str(table.get_name(name, (".weight", ".bias"))) for name in (*required_tensors(config), HEAD)}
    assert len(expected) == 3 + 4 * (9 + 7 + 2 * config.qk_norm)
    assert {name: ggml_name(name) for name in expected} == expected
    assert {name: huggingface_name(ggml) for name, ggml in expected.items()} == {name: name for name in expected}


def test_the_real_model(smollm2_gguf_reader: gguf.GGUFReader) -> None:
    checkpoint = load_checkpoint("smollm2")
    assert checkpoint.config == ModelConfig(
        name="smollm2", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3,
        head_dim=64, max_model_len=8192, rope_theta=100000.0, rms_norm_eps=1e-5,
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
    sizes = dict.fromkeys(("llama.attention.key_length", "llama.attention.value_length"), 16)
    path = write_gguf(metadata=sizes, changed=changed | {"blk.0.attn_output.weight": ones(32, 64)})
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


def two_layers() -> dict[str, np.ndarray | None]:
    return {name.replace("blk.0", "blk.1"): array for name, array in tensors().items() if "blk" in name}


REFUSED: dict[str, dict[str, Any]] = {
    r"model.layers.0.mlp.up_proj.weight is missing; expected one of shape \(32, 32\)": missing("blk.0.ffn_up.weight"),
    "token_embd.weight is missing": missing("token_embd.weight"),
    "model.norm.weight is missing": missing("output_norm.weight"),
    r"q_proj.weight has shape \(64, 32\); expected \(32, 32\)": tensor("blk.0.attn_q.weight", 64, 32),
    r"k_proj.weight has shape \(7, 32\); expected \(16, 32\)": tensor("blk.0.attn_k.weight", 7, 32),
    r"input_layernorm.weight has shape \(31,\); expected \(32,\)": tensor("blk.0.attn_norm.weight", 31),
    "tokenizer has 19 tokens, the embedding 20 rows": tensor("token_embd.weight", 20, 32),
    "model.layers.1.input_layernorm.weight is missing": metadata("llama.block_count", 2),
    "model.layers.1.input.* is missing": metadata("llama.block_count", 2**32 - 1),
    "model.layers.0.input_layernorm.bias' has no place": tensor("blk.0.attn_norm.bias", 32),
    "model.layers.0.self_attn.q_norm.weight' has no place": tensor("blk.0.attn_q_norm.weight", 8),
    "tensor 'blk.0.attn_qkv.weight' has no place": tensor("blk.0.attn_qkv.weight", 64, 32),
    "tensor 'model.norm.weight' has no place": tensor("model.norm.weight", 32),
    r"self_attn.q_proj.bias has shape \(16,\); expected \(32,\)": tensor("blk.0.attn_q.bias", 16),
    r"self_attn.k_proj.bias has shape \(32,\); expected \(16,\)": tensor("blk.0.attn_k.bias", 32),
    "self_attn.v_proj.bias is missing": {
        "metadata": {"llama.block_count": 2},
        "changed": two_layers() | {"blk.0.attn_v.bias": np.ones(16, np.float32)},
    },
    r"model.layers.1.self_attn.v_proj.bias' has no place": {
        "metadata": {"llama.block_count": 2},
        "changed": two_layers() | {"blk.1.attn_v.bias": np.ones(16, np.float32)},
    },
    r"'blk.0.attn_norm.weight' is Q8_0 of shape \(32,\); block formats hold matrices": {
        "types": {"blk.0.attn_norm.weight": "Q8_0"}
    },
    r"rope_freqs.weight is F32 of shape \(8,\), .*; expected F32 of shape \(4,\)": tensor("rope_freqs.weight", 8),
    "rope_freqs.weight is F16 of shape": {
        "changed": {"rope_freqs.weight": np.ones(4, np.float32)},
        "types": {"rope_freqs.weight": "F16"},
    },
    "rope_freqs.weight is F32 of shape .* beside a linear factor 2.0": {
        "changed": {"rope_freqs.weight": np.ones(4, np.float32)},
        "metadata": {"llama.rope.scaling.factor": 2.0},
    },
    r"rope_freqs.weight is not what Llama3Rope\(factor=3.0, .* divides by": {
        "changed": {"rope_freqs.weight": np.float32([1, 2, 3, 3])}
    },
    "factor is nan": {"changed": {"rope_freqs.weight": np.float32([1, np.nan, 2, 3])}},
    "factor is inf": {"changed": {"rope_freqs.weight": np.float32([1, np.inf, 2, 3])}},
    "factor is -1.0": {"changed": {"rope_freqs.weight": -np.ones(4, np.float32)}},
    "original_max_model_len is 0": {
        "changed": {"rope_freqs.weight": np.ones(4, np.float32)},
        "metadata": {"llama.rope.scaling.original_context_length": 0},
    },
    "model.layers.1.input_layernorm.weight' has no place": tensor("blk.1.attn_norm.weight", 32),
    "architecture is 'gemma'; supported: llama, qwen2, qwen3": {"arch": "gemma"},
    "split.count is 3; supported: 0, 1": metadata("split.count", 3),
    "llama.rope.scaling.type is 'yarn'; supported: 'none', 'linear'": metadata("llama.rope.scaling.type", "yarn"),
    "llama.rope.scaling.type is 'longrope'": metadata("llama.rope.scaling.type", "longrope"),
    "llama.rope.scaling.attn_factor is 1.25": metadata("llama.rope.scaling.attn_factor", 1.25),
    "llama.rope.scaling.factor is '2'; expected float": metadata("llama.rope.scaling.factor", "2"),
    "factor is -2.0; expected a positive number": metadata("llama.rope.scale_linear", -2.0),
    "attention.sliding_window is 64; supported: 0, or at least the context's 128": metadata("llama.attention.sliding_window", 64),
    "qwen3.rope.scaling.type is 'yarn'": {"arch": "qwen3", "metadata": {"llama.rope.scaling.type": "yarn"}},
    "self_attn.q_norm.weight is missing": {"arch": "qwen3"},
    "llama.expert_count is 8": metadata("llama.expert_count", 8),
    r"llama.expert_count is array\(\[0, 0\]": metadata("llama.expert_count", [0, 0]),
    "keys have 8 dimensions, values 16, 8 are rotated": metadata("llama.attention.value_length", 16),
    "keys have 8 dimensions, values 8, 4 are rotated": metadata("llama.rope.dimension_count", 4),
    "keys have 4 dimensions, values 8, 4 are rotated": metadata("llama.attention.key_length", 4),
    "llama.embedding_length is missing; expected int": metadata("llama.embedding_length", None),
    "llama.block_count is '1'; expected int": metadata("llama.block_count", "1"),
    r"llama.attention.head_count_kv is array\(\[2\].*; expected int": metadata("llama.attention.head_count_kv", [2]),
    "layer_norm_rms_epsilon is missing": metadata("llama.attention.layer_norm_rms_epsilon", None),
    "rms_norm_eps is nan": metadata("llama.attention.layer_norm_rms_epsilon", float("nan")),
    "rope_theta is 0.0": metadata("llama.rope.freq_base", 0.0),
    "num_heads is 0": metadata("llama.attention.head_count", 0),
    "num_heads 4 is not a multiple of num_kv_heads 3": metadata("llama.attention.head_count_kv", 3),
    r"ggml.model is 'llama'; supported: 'gpt2'": metadata("tokenizer.ggml.model", "llama"),
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
    """And a factor of 0 stands for 1; with `none` a factor is not used."""
    for plain in (
        {"llama.rope.scaling.type": "none", "llama.rope.scale_linear": 1.0, "llama.expert_count": 0, "split.count": 1},
        {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0},
        {"llama.rope.scaling.factor": 0.0, "llama.attention.sliding_window": 128},
    ):
        assert load_llama(write_gguf(metadata=plain)).config.rope_scaling == PlainRope()


@pytest.mark.parametrize("key", ["llama.rope.scaling.factor", "llama.rope.scale_linear"])
@pytest.mark.parametrize("type", [None, "linear"])
def test_linear_scaling(write_gguf: WriteGGUF, key: str, type: str | None) -> None:
    metadata = {key: 4.0, "llama.rope.scaling.type": type}
    assert load_llama(write_gguf(metadata=metadata)).config.rope_scaling == LinearRope(factor=4.0)


def converter_divisors(theta: float, head_dim: int, factor: float, length: int) -> np.ndarray:
    """`rope_freqs.weight` as llama.cpp's converter computes it, in float32."""
    found = []
    for frequency in 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)):
        wave = 2 * math.pi / frequency
        smooth = (length / wave - 1.0) / (4.0 - 1.0)
        found.append(1.0 if wave < length / 4.0 else factor if wave > length else 1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(found, dtype=torch.float32).numpy()


@pytest.mark.parametrize(
    ("theta", "head_dim", "factor", "length"),
    [(5e5, 128, 8.0, 8192), (5e5, 64, 32.0, 8192), (5e5, 128, 16.0, 8192), (1e6, 96, 2.5, 1000), (5e5, 64, 1.0, 8192)],
)
def test_llama3_scaling(write_gguf: WriteGGUF, theta: float, head_dim: int, factor: float, length: int) -> None:
    """The parameters come back out of the divisors, of Llama 3.1, 3.2, 3.3 and others."""
    ones = np.ones((head_dim, 32), np.float32)
    changed: dict[str, np.ndarray] = {f"blk.0.attn_{part}.weight": ones for part in "qkv"}
    changed["blk.0.attn_output.weight"] = np.ones((32, head_dim), np.float32)
    changed["rope_freqs.weight"] = converter_divisors(theta, head_dim, factor, length)
    metadata: dict[str, Any] = {
        "llama.attention.head_count": 1, "llama.attention.head_count_kv": 1, "llama.rope.freq_base": theta,
        "llama.attention.key_length": head_dim, "llama.attention.value_length": head_dim,
        "llama.rope.scaling.original_context_length": None if length == 8192 else length,
    }  # fmt: skip
    expected = Llama3Rope(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_model_len=length)
    assert load_llama(write_gguf(metadata=metadata, changed=changed)).config.rope_scaling == expected
    changed["rope_freqs.weight"] = changed["rope_freqs.weight"] * np.float32(1 + 1e-4 * (np.arange(head_dim // 2) == 3))
    with pytest.raises(InvalidCheckpoint, match="is not what Llama3Rope"):
        load_llama(write_gguf(metadata=metadata, changed=changed))


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("llama", {"model_type": "mistral", "sliding_window": 128}),
    "linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "qwen2": ("qwen2", {"model_type": "qwen2"}),
    "qwen3": ("qwen3", {"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("model", MODELS)
def test_the_same_weights_as_safetensors(write_gguf: WriteGGUF, write_folder: Callable[..., Path], model: str) -> None:
    """One set of weights in both forms: the same configuration and the same bits. Only `llama` has its rows in pairs."""
    architecture, config = MODELS[model]
    draw, size = np.random.default_rng(0), {"vocab_size": 260, "architectures": None}
    shape = read_config(Fields("", CONFIG | config | size), "small")
    names = required_tensors(shape) | ({} if config.get("tie_word_embeddings") else {HEAD: (260, 32)})
    weights: dict[str, np.ndarray] = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in names.items()}
    folder = write_folder(config=config | size, tensors={"lm_head.weight": None} | weights)
    theirs: dict[str, np.ndarray | None] = dict.fromkeys(tensors())
    for name, array in weights.items():
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        theirs[ggml_name(name)] = permute(array, heads) if heads and architecture == "llama" else array
    metadata: dict[str, Any] = {
        "llama.feed_forward_length": 48, "llama.rope.scaling.factor": config.get("rope_scaling", {}).get("factor"),
        "tokenizer.ggml.tokens": ["a", "b", "ab", *(f"t{i}" for i in range(257))], "tokenizer.ggml.token_type": [1] * 260,
        "tokenizer.ggml.merges": ["a b"], "llama.attention.sliding_window": config.get("sliding_window"),
    }  # fmt: skip
    file = load_llama(write_gguf(metadata=metadata, changed=theirs, default="F32", arch=architecture))
    loaded = load_llama_folder(folder, "small")
    assert replace(file.config, rms_norm_eps=1e-5) == loaded.config and file.config.rms_norm_eps == np.float32(1e-5)
    assert file.shapes == loaded.shapes == names
    for name, array in weights.items():
        assert np.array_equal(np.array(file.tensors[name]), array) and np.array_equal(np.array(loaded.tensors[name]), array)
