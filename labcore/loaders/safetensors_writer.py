"""A checkpoint as a Hugging Face folder: config.json, safetensors (in shards, if large), tokenizer.json and what goes with it.

model.safetensors   header length u64, header (JSON: name -> dtype, shape, data_offsets), data

>>> write_safetensors(load_checkpoint("lab"), "lab-folder", "BF16")
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from labcore.core.config import ATTENTION, MLP, QKV, LinearRope, Llama3Rope, ModelConfig
from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.checkpoint import Checkpoint
from labcore.loaders.dense import STORED
from labcore.loaders.fields import write_json
from labcore.loaders.tokenizer import end_token_ids
from labcore.loaders.tokenizer_json import write_tokenizer_json
from labcore.loaders.writing import num_bytes, stored, stored_int8, stored_types, whole
from labcore.quant.int8 import INT8_METHOD, INT8_PREFIX, SCALES

ALIGNMENT = 8  # the data begin at a multiple, so that float32 can be mapped
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "float32"}  # of what is not quantized


def write_safetensors(
    checkpoint: Checkpoint, folder: str | os.PathLike[str], dtype: str = "F32", *, max_shard_bytes: int = 5_000_000_000
) -> None:
    """Write a folder that `load_checkpoint` reads, and if it is not I8 `transformers` too; whole, or not at all.

    dtype: F32, F16 or BF16; or I8: each matrix NAME is int8, beside it `NAME.scales` in float32, one for each of its rows, and
    the config.json names the method. It is a form of our own: the model_type says so too, that others refuse it.
    max_shard_bytes: a file ends before the tensor that would exceed it.
    InvalidCheckpoint: the folder is there already, or the model cannot be said in a config.json.
    """
    config = hf_config(checkpoint, dtype)
    with whole(Path(folder)) as part:
        part.mkdir()
        write_json(part / "config.json", config)
        write_tokenizer_json(checkpoint.tokenizer, part)
        _write_tensors(checkpoint, part, dtype, max_shard_bytes)


def hf_config(checkpoint: Checkpoint, dtype: str) -> dict[str, Any]:
    """The config.json of a checkpoint: Llama's, or Qwen's where only that one has such biases or norms."""
    c = checkpoint.config
    kind, flags = family(c)
    config = {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": kind.lower(),
        "dtype": DTYPES[dtype],
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.max_model_len,
        "rms_norm_eps": c.rms_norm_eps,
        "hidden_act": "silu",
        "rope_theta": c.rope_theta,
        "rope_scaling": _rope_scaling(c),
        "tie_word_embeddings": checkpoint.tied,
        "bos_token_id": checkpoint.tokenizer.bos_token_id,
        "eos_token_id": end_token_ids(checkpoint.tokenizer) or None,
    }
    if dtype == "I8":  # a method that transformers does not know it skips, and takes integers for weights; not so a model_type
        config |= {"model_type": INT8_PREFIX + kind.lower(), "quantization_config": INT8_METHOD}
    return config | flags


def family(c: ModelConfig) -> tuple[str, dict[str, Any]]:
    """The class of `transformers` that computes this, and the flags it needs."""
    if c.moe:
        raise InvalidCheckpoint(f"{c.name}: has experts; only models without them can be written")
    attention, mlp = c.biases - MLP, c.biases & MLP
    if not mlp and c.qk_norm and attention in (frozenset(), ATTENTION):
        return "Qwen3", {"attention_bias": bool(attention)}
    if not mlp and not c.qk_norm and attention == QKV:
        return "Qwen2", {}
    if not c.qk_norm and attention in (frozenset(), ATTENTION) and mlp in (frozenset(), MLP):
        return "Llama", {"attention_bias": bool(attention), "mlp_bias": bool(mlp)}
    raise InvalidCheckpoint(f"{c.name}: no model of transformers has biases on {sorted(c.biases)} and qk_norm={c.qk_norm}")


def _rope_scaling(c: ModelConfig) -> dict[str, Any] | None:
    match c.rope_scaling:
        case LinearRope(factor=factor):
            return {"rope_type": "linear", "factor": factor}
        case Llama3Rope() as rope:
            return {
                "rope_type": "llama3",
                "factor": rope.factor,
                "low_freq_factor": rope.low_freq_factor,
                "high_freq_factor": rope.high_freq_factor,
                "original_max_position_embeddings": rope.original_max_model_len,
            }
    return None


def _write_tensors(checkpoint: Checkpoint, folder: Path, dtype: str, max_shard_bytes: int) -> None:
    types = stored_types(checkpoint, dtype)
    sizes = {name: sum(_size(entry) for entry in _entries(checkpoint, name, kind).values()) for name, kind in types.items()}
    shards: list[dict[str, str]] = [{}]
    for name, kind in types.items():
        held = sum(sizes[other] for other in shards[-1])
        if held and held + sizes[name] > max_shard_bytes:
            shards.append({})
        shards[-1][name] = kind
    if len(shards) == 1:
        _write_file(folder / "model.safetensors", checkpoint, types)
        return
    weight_map: dict[str, str] = {}
    for i, part in enumerate(shards, start=1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        weight_map |= dict.fromkeys(_write_file(folder / file, checkpoint, part), file)
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)


Entry = tuple[str, tuple[int, ...]]  # type and shape of an array in a file


def _entries(checkpoint: Checkpoint, name: str, kind: str) -> dict[str, Entry]:
    """The arrays that a tensor is in the file: itself, and its scales if it is int8."""
    shape = checkpoint.shapes[name]
    return {name: (kind, shape)} | ({name + SCALES: ("F32", shape[:1])} if kind == "I8" else {})


def _size(entry: Entry) -> int:
    kind, shape = entry
    return num_bytes(shape, kind)


def _write_file(path: Path, checkpoint: Checkpoint, types: dict[str, str]) -> list[str]:
    """Write these tensors; returns the names of the arrays they are in the file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, kind in types.items():
        for array, entry in _entries(checkpoint, name, kind).items():
            header[array] = {"dtype": entry[0], "shape": list(entry[1]), "data_offsets": [at, at := at + _size(entry)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, kind in types.items():  # one at a time: a model is larger than its largest matrix
            if kind == "I8":
                int8 = stored_int8(checkpoint.tensors[name], name)
                file.write(int8.data.data)
                file.write(int8.scales.astype(STORED["F32"], copy=False).data)
            else:
                file.write(stored(checkpoint.tensors[name], kind, name).data)
    return [array for array in header if array != "__metadata__"]
