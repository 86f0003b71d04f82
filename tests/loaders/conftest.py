"""A small model as a file of gguf's own writer, and one as a Hugging Face folder, that tests bend in one place each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hugging_face import save_tokenizer
from safetensors.numpy import save_file

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 32, 32, 4, 2, 1
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "Ġ", "Ċ", "ab", "Ġa", "cd", "abcd", "<think>", "é"]
MERGES = ["a b", "Ġ a", "c d", "ab cd"]
KINDS = [3, 3, 3] + [1] * (len(TOKENS) - 5) + [4, 1]

METADATA: dict[str, Any] = {
    "llama.block_count": LAYERS,
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.bos_token_id": 1,
}


def tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    kv = HIDDEN * KV_HEADS // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS), HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (FFN, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (FFN, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, FFN),
        }
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds.get(type(value), writer.add_array)(key, value)


WriteGGUF = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> Iterator[WriteGGUF]:
    """write_gguf(types={tensor: ggml type}, metadata={key: value or None to leave out}, tensors={name: array or None})."""

    def write(
        types: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
        changed: dict[str, np.ndarray | None] | None = None,
        default: str = "Q4_0",
        arch: str = "llama",
    ) -> Path:
        path = tmp_path / "small.gguf"
        writer = gguf.GGUFWriter(path, arch)
        for key, value in (METADATA | (metadata or {})).items():
            if value is not None:
                add(writer, key.replace("llama.", f"{arch}.", 1) if key.startswith("llama.") else key, value)
        for name, array in (tensors() | (changed or {})).items():
            if array is None:
                continue
            kind = gguf.GGMLQuantizationType[(types or {}).get(name, default if array.ndim == 2 else "F32")]
            stored = gguf.quants.quantize(array, kind)
            writer.add_tensor(name, stored, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    yield write


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
WriteFolder = Callable[..., Path]


def folder_tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    layer = "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (260, 32),
        f"{layer}input_layernorm.weight": (32,),
        f"{layer}self_attn.q_proj.weight": (32, 32),
        f"{layer}self_attn.k_proj.weight": (16, 32),
        f"{layer}self_attn.v_proj.weight": (16, 32),
        f"{layer}self_attn.o_proj.weight": (32, 32),
        f"{layer}post_attention_layernorm.weight": (32,),
        f"{layer}mlp.gate_proj.weight": (48, 32),
        f"{layer}mlp.up_proj.weight": (48, 32),
        f"{layer}mlp.down_proj.weight": (32, 48),
        "model.norm.weight": (32,),
        "lm_head.weight": (260, 32),
    }
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def write_folder(tmp_path: Path) -> WriteFolder:
    """write_folder(config={key: value, or None to leave out}, tensors={name: array or None}, shards=number of files)."""

    def write(config: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None, shards: int = 0) -> Path:
        folder = tmp_path / "tiny"
        folder.mkdir(exist_ok=True)
        said = {key: value for key, value in (CONFIG | (config or {})).items() if value is not None}
        (folder / "config.json").write_text(json.dumps(said))
        kept = {name: array for name, array in (folder_tensors() | (tensors or {})).items() if array is not None}
        save_tokenizer(folder)
        if not shards:
            save_file(kept, folder / "model.safetensors")
            return folder
        places = {name: f"part-{index % shards}.safetensors" for index, name in enumerate(kept)}
        for shard in set(places.values()):
            save_file({name: array for name, array in kept.items() if places[name] == shard}, folder / shard)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        return folder

    return write
