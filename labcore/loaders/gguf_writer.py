"""A checkpoint as a GGUF file that llama.cpp's family and `load_checkpoint` read, through the `gguf` package.

ggml's names and row order are those of `llama_gguf`, backwards.

    >>> write_gguf(load_checkpoint("lab"), "lab.gguf", "BF16")
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np

from labcore.core.config import LinearRope, Llama3Rope, ModelConfig
from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.checkpoint import Checkpoint
from labcore.loaders.llama_gguf import (
    HEAD_DIM_KEYS,
    HIGH_FREQ_FACTOR,
    LOW_FREQ_FACTOR,
    METADATA_KEYS,
    ROPE_DIVISORS,
    ggml_name,
    permuted_heads,
    rope_divisors,
    rows_in_pairs,
)
from labcore.loaders.safetensors_writer import family
from labcore.loaders.tokenizer_json import gguf_vocabulary
from labcore.loaders.writing import num_bytes, stored, stored_types, whole
from labcore.quant.gguf_blocks import FORMATS

FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_1": gguf.LlamaFileType.MOSTLY_Q4_1,
}


def write_gguf(checkpoint: Checkpoint, path: str | os.PathLike[str], dtype: str = "F32") -> None:
    """Write one file, whole or not at all. dtype: F32, F16 or BF16, or a block format (see `writing`).

    InvalidCheckpoint: the file is there already, or a GGUF cannot say this model or this tokenizer.
    """
    config, architecture = checkpoint.config, family(checkpoint.config)[0].lower()
    permuted = permuted_heads(architecture, config)
    types = stored_types(checkpoint, dtype)
    divisors = rope_divisors(config) if isinstance(config.rope_scaling, Llama3Rope) else None
    with whole(Path(path)) as part, closing(gguf.GGUFWriter(part, architecture)) as writer:
        writer.add_name(config.name)
        writer.add_file_type(FILE_TYPES[dtype])
        if dtype in FORMATS:
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _add_config(writer, architecture, config)
        _add_tokenizer(writer, checkpoint)
        for name, kind in types.items():
            _add_tensor(writer, ggml_name(name), checkpoint.shapes[name], kind)
        if divisors is not None:
            _add_tensor(writer, ROPE_DIVISORS, divisors.shape, "F32")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, kind in types.items():  # one at a time: a model is larger than its largest matrix
            data, heads = stored(checkpoint.tensors[name], kind, name), permuted.get(name.split(".")[-2])
            writer.write_tensor_data(data if heads is None else rows_in_pairs(data, heads))
        if divisors is not None:
            writer.write_tensor_data(divisors)


def _add_tensor(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], kind: str) -> None:
    # the numpy dtype is not looked at beside a ggml type, unless it is uint8: the shape would be taken as bytes
    writer.add_tensor_info(name, shape, np.dtype(np.float32), num_bytes(shape, kind), gguf.GGMLQuantizationType[kind])


def _add_config(writer: gguf.GGUFWriter, architecture: str, c: ModelConfig) -> None:
    for field, key in METADATA_KEYS.items():
        value = getattr(c, field)
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"{architecture}.{key}", value)
    for key in HEAD_DIM_KEYS:
        writer.add_uint32(f"{architecture}.{key}", c.head_dim)
    writer.add_vocab_size(c.vocab_size)
    match c.rope_scaling:
        case LinearRope(factor=factor):
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(factor)
        case Llama3Rope(factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_model_len=length):
            if (low, high) != (LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR) or rope_divisors(c).max() != np.float32(factor):
                raise InvalidCheckpoint(
                    f"{c.name}: {c.rope_scaling}; a GGUF can say it for low and high factors of {LOW_FREQ_FACTOR:g} and "
                    f"{HIGH_FREQ_FACTOR:g}, and where the longest wave is divided by the whole factor"
                )
            writer.add_rope_scaling_orig_ctx_len(length)


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    vocabulary = gguf_vocabulary(checkpoint.tokenizer)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    writer.add_token_merges(vocabulary.merges)
    writer.add_add_bos_token(vocabulary.add_bos)
    if vocabulary.bos_token_id is not None:
        writer.add_bos_token_id(vocabulary.bos_token_id)
    ends = vocabulary.eos_token_ids
    if len(ends) > 3:
        raise InvalidCheckpoint(f"{checkpoint.config.name}: {len(ends)} tokens end a text; a GGUF has room for 3 (eos, eot, eom)")
    for end, add in zip(ends, (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id), strict=False):
        add(end)
    if vocabulary.chat_template is not None:
        writer.add_chat_template(vocabulary.chat_template)
