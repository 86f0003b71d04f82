"""A Llama-family decoder out of a Hugging Face folder: config.json, weights in safetensors, tokenizer.json.

What a key means when it is absent, and which projections have biases, is the rule of the `transformers` class that the
`model_type` names. Both spellings of the rotary embedding are read: `rope_theta` beside `rope_scaling`, and
`rope_parameters`, which holds both (transformers 5).

Limits: llama, mistral, qwen2 and qwen3, and with experts in every layer mixtral, qwen2_moe and qwen3_moe; each attending to
the whole context, in float32, float16 or bfloat16, or in the int8 that `safetensors_writer` writes; rotary embedding over the
whole head, plain, linear or Llama 3's. The rest is refused by name, because leaving it out would give a model that is only
slightly wrong. Mixtral's experts have names of their own in the file; a tensor that is refused is called by Qwen's.
Source: the configuration and modeling files of `transformers`.

    >>> checkpoint = load_llama_folder("SmolLM2-135M-Instruct")
    >>> checkpoint.config.num_layers, checkpoint.tied
    (30, True)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labcore.core.config import ATTENTION, MLP, QKV, LinearRope, Llama3Rope, ModelConfig, MoEConfig, PlainRope, RopeScaling
from labcore.core.errors import InvalidCheckpoint, InvalidConfig
from labcore.loaders.checkpoint import EMBEDDING, HEAD, Checkpoint, LazyTensors, Tensor, readable, validate
from labcore.loaders.fields import Fields, read_json
from labcore.loaders.safetensors_file import StoredTensor, read_safetensors
from labcore.loaders.tokenizer_json import read_tokenizer_json
from labcore.quant.int8 import INT8_METHOD, INT8_PREFIX, SCALES, Int8Tensor

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
COMPUTED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # older versions stored these frequencies
ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
MIXTRAL_NAMES = {".block_sparse_moe.": ".mlp.", ".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a `model_type` says beyond its config.json.

    num_kv_heads, head_dim: where the key is absent. None: as many as heads; the hidden size over heads.
    windowed, window:       whether a sliding window needs no flag; what it is where the key is absent.
    biases, bias_flags:     projections that always have biases, and those that a flag gives them.
    default_on:             the flags that are true where they are absent.
    experts, shared_expert: the key of an expert's size, in a family that has experts; whether one is shared.
    norm_topk_prob:         whether the weights of the chosen are always divided by their sum; else a flag says so.
    renamed:                parts of tensors' names in the file, and ours for them.
    """

    architecture: str
    num_kv_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    windowed: bool = False
    window: int | None = 4096
    biases: frozenset[str] = frozenset()
    bias_flags: Mapping[str, frozenset[str]] = field(default_factory=dict)
    default_on: frozenset[str] = frozenset()
    qk_norm: bool = False
    experts: str | None = None
    shared_expert: bool = False
    norm_topk_prob: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)


FAMILIES = {
    "llama": Family(architecture="LlamaForCausalLM", bias_flags={"attention_bias": ATTENTION, "mlp_bias": MLP}),
    "mistral": Family(architecture="MistralForCausalLM", num_kv_heads=8, windowed=True),
    "qwen2": Family(architecture="Qwen2ForCausalLM", num_kv_heads=32, biases=QKV),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM", num_kv_heads=32, head_dim=128, bias_flags={"attention_bias": ATTENTION}, qk_norm=True
    ),
    "mixtral": Family(
        architecture="MixtralForCausalLM", num_kv_heads=8, rope_theta=1e6, rms_norm_eps=1e-5, windowed=True, window=None,
        experts="intermediate_size", norm_topk_prob=True, renamed=MIXTRAL_NAMES,
    ),
    "qwen2_moe": Family(
        architecture="Qwen2MoeForCausalLM", num_kv_heads=16, bias_flags={"qkv_bias": QKV}, default_on=frozenset({"qkv_bias"}),
        experts="moe_intermediate_size", shared_expert=True,
    ),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM", num_kv_heads=4, bias_flags={"attention_bias": ATTENTION}, qk_norm=True,
        experts="moe_intermediate_size",
    ),
}  # fmt: skip


def load_llama_folder(folder: str | os.PathLike[str], name: str | None = None) -> Checkpoint:
    """Read and validate a folder; `name` is the model's, by default the folder's."""
    folder = Path(folder)
    fields = Fields(f"{folder / 'config.json'}:", read_json(folder / "config.json"))
    config = read_config(fields, name or readable(folder.absolute().name))
    stored = {key: tensor for key, tensor in read_safetensors(weights_path(folder)).items() if not COMPUTED.fullmatch(key)}
    tensors = _renamed(fields, stored)
    scales = _take_scales(fields, tensors)
    _settle_head(fields, tensors, scales)

    def make(key: str) -> Tensor:
        data = tensors[key].load()
        return Int8Tensor(data.shape, data, scales[key].load()) if key in scales else data

    lazy = LazyTensors({key: tensor.shape for key, tensor in tensors.items()}, make)
    return validate(Checkpoint(config, lazy, read_tokenizer_json(folder, config.vocab_size)), str(folder))


def weights_path(folder: Path) -> Path:
    """The one file or the index that holds a folder's weights; InvalidCheckpoint if it has neither, or both."""
    found = [folder / name for name in WEIGHTS if os.path.isfile(folder / name)]
    if len(found) != 1:
        raise InvalidCheckpoint(
            f"{folder}: has {' and '.join(WEIGHTS) if found else 'no weights'}; expected one of {', '.join(WEIGHTS)}"
        )
    return found[0]


def _renamed(fields: Fields, tensors: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors by our names."""
    ours: dict[str, StoredTensor] = {}
    renamed = _family(fields).renamed
    for name, tensor in tensors.items():
        key = name
        for part, instead in renamed.items():
            key = key.replace(part, instead)
        if key in ours:
            raise InvalidCheckpoint(f"{fields.source} tensor {name!r:.80} is there under another name too, {key!r:.80}")
        ours[key] = tensor
    return ours


def _take_scales(fields: Fields, tensors: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Take the scales out of the tensors; by the name of the int8 matrix that each belongs to, which it must fit."""
    names = [name for name in tensors if name.endswith(SCALES)] if fields.get("quantization_config") else []
    scales = {name.removesuffix(SCALES): tensors.pop(name) for name in names}
    for name in sorted({name for name, tensor in tensors.items() if tensor.dtype == "I8"} ^ scales.keys()):
        what = f"has scales, but no int8 matrix {name!r:.80}" if name in scales else f"int8 tensor {name!r:.80} has no scales"
        raise InvalidCheckpoint(f"{fields.source} {what}; expected a quantization_config, and NAME in I8 beside NAME{SCALES}")
    for name, scale in scales.items():
        shape = tensors[name].shape
        if len(shape) != 2 or (scale.dtype, scale.shape) != ("F32", shape[:1]):
            raise InvalidCheckpoint(
                f"{fields.source} int8 tensor {name!r:.80} of shape {shape!s:.60} has scales {scale.dtype} {scale.shape!s:.60}; "
                "expected a matrix, and one F32 for each of its rows"
            )
    return scales


def _settle_head(fields: Fields, tensors: dict[str, StoredTensor], scales: dict[str, StoredTensor]) -> None:
    """Hold `tie_word_embeddings` against the file. A head that repeats the embedding, as it should when tied, is dropped."""
    tied, head, embedding = fields.flag("tie_word_embeddings", False), tensors.get(HEAD), tensors.get(EMBEDDING)
    if tied and head and embedding:
        if not head.same_bits(embedding) or (HEAD in scales and not scales[HEAD].same_bits(scales[EMBEDDING])):
            fields.fail("tie_word_embeddings", f"but tensor {HEAD} differs from {EMBEDDING}")
        del tensors[HEAD]
    if not tied and head is None:
        fields.fail("tie_word_embeddings", f"expected a tensor {HEAD}, which the weights lack")


def read_config(fields: Fields, name: str) -> ModelConfig:
    """The decoder's shape from the keys of a config.json."""
    family = _family(fields)
    on = family.default_on
    fields.only("architectures", [family.architecture])
    fields.only("hidden_act", "silu")
    for key, known in (("quantization_config", [INT8_METHOD]), ("compression_config", [])):
        if fields.get(key) not in (None, *known):
            fields.fail(key, f"supported: weights that are not quantized, or quantized by {INT8_METHOD['quant_method']}")
    hidden, heads, most = (fields.integer(key) for key in ("hidden_size", "num_attention_heads", "max_position_embeddings"))
    _check_window(fields, family, most)
    # null is as many as heads in every class that takes it, an absent key what the class says
    no_kv_heads = heads if "num_key_value_heads" in fields.values else family.num_kv_heads or heads
    try:
        theta, scaling = _rope(fields, family, most)
        return ModelConfig(
            name=name,
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=fields.integer("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=fields.integer("num_key_value_heads", no_kv_heads),
            head_dim=fields.integer("head_dim", family.head_dim or hidden // max(heads, 1)),
            max_model_len=most,
            rope_theta=theta,
            rms_norm_eps=fields.number("rms_norm_eps", family.rms_norm_eps),
            rope_scaling=scaling,
            biases=family.biases.union(*(some for flag, some in family.bias_flags.items() if fields.flag(flag, flag in on))),
            qk_norm=family.qk_norm,
            moe=_experts(fields, family),
        )
    except InvalidConfig as error:
        raise InvalidCheckpoint(f"{fields.source} {error}") from None


def _family(fields: Fields) -> Family:
    kind = fields.text("model_type")
    if fields.get("quantization_config"):
        kind = kind.removeprefix(INT8_PREFIX)
    if kind not in FAMILIES:
        fields.fail("model_type", f"supported: {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def _experts(fields: Fields, family: Family) -> MoEConfig | None:
    """The experts, which every layer must have. Their number has two spellings, of older and newer versions of transformers."""
    if family.experts is None:
        return None
    fields.only("decoder_sparse_step", 1)
    fields.only("mlp_only_layers", [])
    spelling = "num_local_experts" if fields.get("num_experts") is None else "num_experts"
    num_experts = fields.integer(spelling)
    fields.only("num_local_experts", num_experts)
    return MoEConfig(
        num_experts=num_experts,
        num_experts_per_tok=fields.integer("num_experts_per_tok"),
        moe_intermediate_size=fields.integer(family.experts),
        norm_topk_prob=family.norm_topk_prob or fields.flag("norm_topk_prob", False),
        shared_expert_intermediate_size=fields.integer("shared_expert_intermediate_size") if family.shared_expert else 0,
    )


def _check_window(fields: Fields, family: Family, most: int) -> None:
    """Refuse a window that is narrower than the context, for all layers or for some."""
    layer_types = fields.typed("layer_types", list, [])
    if any(kind != "full_attention" for kind in layer_types):
        fields.fail("layer_types", "supported: full_attention")
    if family.windowed or fields.flag("use_sliding_window", False):
        window = fields.values.get("sliding_window", family.window)  # null is no window
        if window is not None and not (type(window) is int and window >= most):
            raise InvalidCheckpoint(
                f"{fields.source} sliding_window is {window!r:.60}; supported: null, or at least max_position_embeddings ({most})"
            )


def _rope(fields: Fields, family: Family, most: int) -> tuple[float, RopeScaling]:
    """Base and scaling. Where both spellings stand, transformers lets `rope_scaling` and the inner `rope_theta` win."""
    at = "rope_scaling" if fields.typed("rope_scaling", dict, {}) else "rope_parameters"
    rope = Fields(f"{fields.source} {at}:", fields.typed(at, dict, {}))
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in ROPE_KEYS:
        rope.fail("rope_type" if rope.get("rope_type") else "type", f"supported: {', '.join(ROPE_KEYS)}")
    for key in sorted(rope.values.keys() - {"rope_type", "type", "rope_theta", "partial_rotary_factor", *ROPE_KEYS[kind]}):
        if rope.get(key) is not None:
            rope.fail(key, f"not known for {kind!r}")
    fields.only("partial_rotary_factor", 1.0, 1)
    rope.only("partial_rotary_factor", 1.0, 1)
    theta = rope.number("rope_theta", fields.number("rope_theta", family.rope_theta))
    match kind:
        case "linear":
            return theta, LinearRope(factor=rope.number("factor"))
        case "llama3":
            trained = rope.integer("original_max_position_embeddings", most)
            return theta, Llama3Rope(
                factor=rope.number("factor"),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
                original_max_model_len=fields.integer("original_max_position_embeddings", trained),
            )
    return theta, PlainRope()
