"""A Llama decoder out of a GGUF file: metadata to configuration, ggml's names and row order to Hugging Face's.

ggml rotates neighbours (rows 2i and 2i + 1 of a head), Hugging Face halves (rows i and i + head_dim / 2), and the
files for ggml have the rows of q and k reordered for it. They are put back here. The rows of a block format move
whole, since blocks run along a row; only q and k are copied.

Limits: architecture `llama`, plain rotary embedding over the whole head, no experts, no biases, byte-level BPE
tokenizers; each of the others is refused by name, because leaving it out would give a model that is only slightly wrong.
Source: `permute` and the tensor names of llama.cpp's converter.

    >>> checkpoint = load_llama("SmolLM2-135M-Instruct.Q4_1.gguf")
    >>> checkpoint.config.num_layers, checkpoint.tied
    (30, True)
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from labcore.core.config import ModelConfig
from labcore.core.errors import InvalidCheckpoint, InvalidConfig
from labcore.loaders.bpe import BPETokenizer
from labcore.loaders.checkpoint import EMBEDDING, FINAL_NORM, HEAD, Checkpoint, Tensor, validate
from labcore.loaders.gguf import GGUFFile, read_gguf
from labcore.quant.quantized_tensor import QuantizedTensor

GLOBAL_NAMES = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load_llama(path: str | os.PathLike[str], name: str | None = None) -> Checkpoint:
    """Read, convert and validate a file; `name` is the model's, by default the file's stem."""
    file = read_gguf(path)
    config = read_config(file, name or file.path.stem)
    tensors: dict[str, Tensor] = {}
    for ggml_name in file.tensors:
        tensor = file.tensor(ggml_name)
        hf_name = huggingface_name(ggml_name)
        if hf_name.endswith("q_proj.weight"):
            tensor = rows_in_halves(tensor, config.num_heads)
        elif hf_name.endswith("k_proj.weight"):
            tensor = rows_in_halves(tensor, config.num_kv_heads)
        tensors[hf_name] = tensor
    return validate(Checkpoint(config, tensors, read_tokenizer(file)), str(file.path))


def huggingface_name(ggml_name: str) -> str:
    """The Hugging Face name of a tensor; a name that is not known stays as it is, and `validate` refuses it."""
    match ggml_name.split("."):
        case ["blk", layer, part, "weight"] if part in LAYER_NAMES:
            return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"
    return GLOBAL_NAMES.get(ggml_name, ggml_name)


def rows_in_halves(tensor: Tensor, num_heads: int) -> Tensor:
    """Undo ggml's row order: within each head, rows (pair, 2) become rows (2, pair)."""
    rows = tensor.shape[0]
    if rows % (2 * num_heads):
        return tensor  # of a wrong shape, which `validate` reports
    order = np.arange(rows).reshape(num_heads, -1, 2).swapaxes(1, 2).ravel()  # (heads, head_dim / 2, 2)
    if isinstance(tensor, QuantizedTensor):
        return QuantizedTensor(tensor.format, tensor.shape, tensor.data[order])
    return tensor[order]


def read_config(file: GGUFFile, name: str) -> ModelConfig:
    """The decoder's shape from the metadata `llama.*`; the vocabulary is the embedding's number of rows."""
    get = _Metadata(file)
    architecture = get.text("general.architecture")
    if architecture != "llama":
        raise InvalidCheckpoint(f"{file.path}: architecture is {architecture!r:.60}; supported: llama")
    for key, plain in (("llama.rope.scaling.type", "none"), ("llama.rope.scale_linear", 1.0), ("llama.expert_count", 0)):
        value = file.metadata.get(key, plain)
        if type(value) is not type(plain) or value != plain:
            raise InvalidCheckpoint(f"{file.path}: {key} is {value!r:.60}; supported: {plain!r}")
    if "token_embd.weight" not in file.tensors:
        raise InvalidCheckpoint(f"{file.path}: tensor token_embd.weight is missing")
    hidden, heads = get.integer("llama.embedding_length"), get.integer("llama.attention.head_count")
    rotated = get.integer("llama.rope.dimension_count", hidden // max(heads, 1))
    head_dim = get.integer("llama.attention.key_length", rotated)
    value_dim = get.integer("llama.attention.value_length", head_dim)
    if not head_dim == value_dim == rotated:
        raise InvalidCheckpoint(
            f"{file.path}: keys have {head_dim} dimensions, values {value_dim}, {rotated} are rotated; expected the same number"
        )
    try:
        return ModelConfig(
            name=name,
            vocab_size=file.tensors["token_embd.weight"].shape[0],
            hidden_size=hidden,
            intermediate_size=get.integer("llama.feed_forward_length"),
            num_layers=get.integer("llama.block_count"),
            num_heads=heads,
            num_kv_heads=get.integer("llama.attention.head_count_kv", heads),
            head_dim=head_dim,
            max_model_len=get.integer("llama.context_length"),
            rope_theta=get.number("llama.rope.freq_base", 10000.0),
            rms_norm_eps=get.number("llama.attention.layer_norm_rms_epsilon"),
        )
    except InvalidConfig as error:
        raise InvalidCheckpoint(f"{file.path}: {error}") from None


def read_tokenizer(file: GGUFFile) -> BPETokenizer:
    """The tokenizer from the metadata `tokenizer.*`."""
    get = _Metadata(file)
    model = get.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise InvalidCheckpoint(f"{file.path}: tokenizer.ggml.model is {model!r:.60}; supported: gpt2 (byte-level BPE)")
    ends = [get.typed(f"tokenizer.ggml.{end}_token_id", int, None) for end in ("eos", "eot", "eom")]
    try:
        return BPETokenizer(
            get.typed("tokenizer.ggml.tokens", list),
            get.typed("tokenizer.ggml.merges", list),
            get.typed("tokenizer.ggml.token_type", np.ndarray, np.empty(0, np.int32)).tolist(),
            pre=get.text("tokenizer.ggml.pre"),
            eos_token_ids=[end for end in ends if end is not None],
            bos_token_id=get.typed("tokenizer.ggml.bos_token_id", int, None),
            add_bos=get.typed("tokenizer.ggml.add_bos_token", bool, None),
            chat_template=get.typed("tokenizer.chat_template", str, None),
        )
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{file.path}: {error}") from None


_REQUIRED = object()


class _Metadata:
    """Metadata by key and type; a key that is absent without a default, or of another type, is named."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file

    def typed(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        value = self.file.metadata.get(key, default)
        if value is _REQUIRED:
            raise InvalidCheckpoint(f"{self.file.path}: metadata {key} is missing; expected {kind.__name__}")
        if value is not default and type(value) is not kind:
            raise InvalidCheckpoint(f"{self.file.path}: metadata {key} is {type(value).__name__}; expected {kind.__name__}")
        return value

    def text(self, key: str) -> str:
        return self.typed(key, str)

    def integer(self, key: str, default: Any = _REQUIRED) -> int:
        return self.typed(key, int, default)

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        return self.typed(key, float, default)
