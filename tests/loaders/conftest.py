"""A small model file, written by gguf's own writer, that tests bend in one place each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

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
                add(writer, key, value)
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
