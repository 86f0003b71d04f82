"""A Llama-family decoder out of a GGUF file: metadata to configuration, ggml's names and row order to Hugging Face's.

In files of architecture `llama` ggml rotates neighbours (rows 2i and 2i + 1 of a head), Hugging Face halves (rows i and
i + head_dim / 2), and the rows of q and k, and their biases, have been reordered for it. They are put back here, when a
tensor is asked for. The rows of a block format move whole, since blocks run along a row; only q and k are copied.

Limits: architectures `llama` (Mistral is one), `qwen2` and `qwen3`; rotary embedding over the whole head, plain, linear
or Llama 3's; one file; no experts, no sliding window; byte-level BPE. Each of the others is refused by name, because
leaving it out would give a model that is only slightly wrong.
Source: llama.cpp, its converter (tensor names, `permute`, `rope_freqs`) and its loader (what an absent key means).

    >>> checkpoint = load_llama("SmolLM2-135M-Instruct.Q4_1.gguf")
    >>> checkpoint.config.num_layers, checkpoint.tied
    (30, True)
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from labcore.core.config import PROJECTIONS, LinearRope, Llama3Rope, ModelConfig, PlainRope, RopeScaling
from labcore.core.errors import InvalidCheckpoint, InvalidConfig
from labcore.loaders.bpe import BPETokenizer
from labcore.loaders.checkpoint import EMBEDDING, FINAL_NORM, HEAD, Checkpoint, LazyTensors, Tensor, readable, validate
from labcore.loaders.fields import Fields
from labcore.loaders.gguf import GGUFFile, read_gguf
from labcore.quant.quantized_tensor import QuantizedTensor

FileTensor = np.ndarray | QuantizedTensor  # what a GGUF file may hold
ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_DIVISORS = "rope_freqs.weight"
LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR = 1.0, 4.0  # of Llama 3; a GGUF does not say them
DIVISOR_TOLERANCE = 1e-5  # llama.cpp's converter computes them in float32, 3e-7 off
GLOBAL_NAMES = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GGML_NAMES = {theirs: ours for ours, theirs in (GLOBAL_NAMES | LAYER_NAMES).items()}
METADATA_KEYS = {  # of ModelConfig's fields, after the architecture and a dot; head_dim is said three times
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_layers": "block_count",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "max_model_len": "context_length",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
HEAD_DIM_KEYS = ("attention.key_length", "attention.value_length", "rope.dimension_count")


def load_llama(path: str | os.PathLike[str], name: str | None = None) -> Checkpoint:
    """Read and validate a file; `name` is the model's, by default the file's stem."""
    file = read_gguf(path)
    config = read_config(file, name or readable(file.path.stem))
    names = {huggingface_name(ggml): ggml for ggml in file.tensors if ggml != ROPE_DIVISORS}
    for hf, ggml in names.items():
        if hf == ggml:  # not one of ggml's, even if it is one of Hugging Face's
            raise InvalidCheckpoint(f"{file.path}: tensor {ggml!r:.80} has no place in a decoder")
    permuted = permuted_heads(str(file.metadata["general.architecture"]), config)

    def make(hf: str) -> Tensor:
        tensor, module = file.tensor(names[hf]), hf.split(".")[-2]
        return rows_in_halves(tensor, permuted[module]) if module in permuted else tensor

    tensors = LazyTensors({hf: file.tensors[ggml].shape for hf, ggml in names.items()}, make)
    return validate(Checkpoint(config, tensors, read_tokenizer(file)), str(file.path))


def huggingface_name(ggml_name: str) -> str:
    """The Hugging Face name of a tensor; a name that is not known stays as it is."""
    match ggml_name.split("."):
        case ["blk", layer, part, kind] if part in LAYER_NAMES:
            return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"
    return GLOBAL_NAMES.get(ggml_name, ggml_name)


def ggml_name(hf_name: str) -> str:
    """The way back, for the tensors of a valid checkpoint."""
    match hf_name.split("."):
        case ["model", "layers", layer, *module, kind]:
            return f"blk.{layer}.{GGML_NAMES['.'.join(module)]}.{kind}"
    return GGML_NAMES[hf_name]


def permuted_heads(architecture: str, config: ModelConfig) -> dict[str, int]:
    """The projections whose rows ggml has in its own order, and their number of heads."""
    return {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if architecture == "llama" else {}


def rows_in_halves(tensor: FileTensor, num_heads: int) -> FileTensor:
    """Undo ggml's row order: within each head, rows (pair, 2) become rows (2, pair). `tensor` is a matrix or a bias."""
    order = (num_heads, -1, 2)
    if isinstance(tensor, QuantizedTensor):
        return QuantizedTensor(tensor.format, tensor.shape, _reordered(tensor.data, order))
    return _reordered(tensor, order)


def rows_in_pairs(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """ggml's row order: within each head, rows (2, pair) become rows (pair, 2). A row is of numbers, or of blocks as bytes."""
    return _reordered(rows, (num_heads, 2, -1))


def _reordered(rows: np.ndarray, rows_as: tuple[int, int, int]) -> np.ndarray:
    """The rows, laid out as (heads, a, b), as they are read as (heads, b, a)."""
    return rows[np.arange(len(rows)).reshape(rows_as).swapaxes(1, 2).ravel()]


def read_config(file: GGUFFile, name: str) -> ModelConfig:
    """The decoder's shape from the metadata `llama.*` (or `qwen2.*`, `qwen3.*`), the embedding's rows, and layer 0's biases."""
    every = Fields(f"{file.path}: metadata", file.metadata)
    architecture = every.text("general.architecture")
    if architecture not in ARCHITECTURES:
        every.fail("general.architecture", f"supported: {', '.join(ARCHITECTURES)}")
    every.only("split.count", 0, 1)
    if "token_embd.weight" not in file.tensors:
        raise InvalidCheckpoint(f"{file.path}: tensor token_embd.weight is missing")
    get = Fields(every.source, file.metadata, prefix=f"{architecture}.")
    get.only("expert_count", 0)
    hidden, heads = get.integer("embedding_length"), get.integer("attention.head_count")
    head_dim = get.integer("attention.key_length", hidden // max(heads, 1))
    value_dim = get.integer("attention.value_length", hidden // max(heads, 1))
    rotated = get.integer("rope.dimension_count", head_dim)
    if not head_dim == value_dim == rotated:
        raise InvalidCheckpoint(
            f"{file.path}: keys have {head_dim} dimensions, values {value_dim}, {rotated} are rotated; expected the same number"
        )
    try:
        config = ModelConfig(
            name=name,
            vocab_size=file.tensors["token_embd.weight"].shape[0],
            hidden_size=hidden,
            intermediate_size=get.integer("feed_forward_length"),
            num_layers=get.integer("block_count"),
            num_heads=heads,
            num_kv_heads=get.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            max_model_len=get.integer("context_length"),
            rope_theta=_shortest(get.number("rope.freq_base", 10000.0)),
            rms_norm_eps=_shortest(get.number("attention.layer_norm_rms_epsilon")),
            biases=frozenset(part for part in PROJECTIONS if ggml_name(f"model.layers.0.{part}.bias") in file.tensors),
            qk_norm=architecture == "qwen3",
        )
        window = get.integer("attention.sliding_window", 0)
        if window and window < config.max_model_len:
            get.fail("attention.sliding_window", f"supported: 0, or at least the context's {config.max_model_len}")
        return replace(config, rope_scaling=_rope_scaling(file, get, config))
    except InvalidConfig as error:
        raise InvalidCheckpoint(f"{file.path}: {error}") from None


def _shortest(number: float) -> float:
    """The shortest decimal that is this number in float32, as which a GGUF holds it: 1e-5 and not 9.999999747378752e-06."""
    return float(str(np.float32(number)))


def _rope_scaling(file: GGUFFile, get: Fields, config: ModelConfig) -> RopeScaling:
    """One factor (linear, also where no type is said), or the divisors by which ggml says Llama 3's scaling."""
    get.only("rope.scaling.type", "none", "linear")
    get.only("rope.scaling.attn_factor", 1.0)
    factor = _shortest(get.number("rope.scaling.factor", get.number("rope.scale_linear", 0.0)))
    linear = get.text("rope.scaling.type", "linear") == "linear" and factor not in (0.0, 1.0)  # 0 stands for 1
    if ROPE_DIVISORS not in file.tensors:
        return LinearRope(factor=factor) if linear else PlainRope()
    info = file.tensors[ROPE_DIVISORS]
    if linear or info.type != "F32" or info.shape != (config.head_dim // 2,):
        raise InvalidCheckpoint(
            f"{file.path}: {ROPE_DIVISORS} is {info.type} of shape {info.shape}, beside a linear factor {factor}; "
            f"expected F32 of shape {(config.head_dim // 2,)} and no factor"
        )
    divisors = np.asarray(file.tensor(ROPE_DIVISORS))
    scaling = Llama3Rope(
        factor=float(divisors.max()),  # of the longest wave
        low_freq_factor=LOW_FREQ_FACTOR,
        high_freq_factor=HIGH_FREQ_FACTOR,
        original_max_model_len=get.integer("rope.scaling.original_context_length", 8192),
    )
    if not np.allclose(rope_divisors(replace(config, rope_scaling=scaling)), divisors, rtol=DIVISOR_TOLERANCE, atol=0):
        raise InvalidCheckpoint(f"{file.path}: {ROPE_DIVISORS} is not what {scaling} divides by; no other scaling is supported")
    return scaling


def rope_divisors(config: ModelConfig) -> np.ndarray:
    """What the scaling divides each frequency by, float32 (head_dim / 2,)."""
    trained = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    return np.array([frequency / config.rope_scaling.scaled(frequency) for frequency in trained.tolist()], np.float32)


def read_tokenizer(file: GGUFFile) -> BPETokenizer:
    """The tokenizer from the metadata `tokenizer.*`."""
    get = Fields(f"{file.path}: metadata", file.metadata, prefix="tokenizer.")
    get.text("ggml.model")
    get.only("ggml.model", "gpt2")  # byte-level BPE
    pre = get.text("ggml.pre")
    # the lab's tokenizer merges nothing, and the writers of GGUF leave an empty list out
    merges = get.typed("ggml.merges", list, []) if pre == "lab" else get.typed("ggml.merges", list)
    ends = [get.typed(f"ggml.{end}_token_id", int, None) for end in ("eos", "eot", "eom")]
    fields = {
        "kinds": get.typed("ggml.token_type", np.ndarray, np.empty(0, np.int32)).tolist(),
        "bos_token_id": get.typed("ggml.bos_token_id", int, None),
        "add_bos": get.typed("ggml.add_bos_token", bool, None),
        "chat_template": get.typed("chat_template", str, None),
    }
    try:
        return BPETokenizer(
            get.typed("ggml.tokens", list), merges, pre=pre, eos_token_ids=[end for end in ends if end is not None], **fields
        )
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{file.path}: {error}") from None
