"""A config.json to a configuration: defaults of each class, both spellings of the rope, the head, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from labcore.core.config import PROJECTIONS, LinearRope, Llama3Rope, ModelConfig, PlainRope
from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.fields import Fields
from labcore.loaders.llama_safetensors import FAMILIES, load_llama_folder, read_config

WriteFolder = Callable[..., Path]
EMBEDDING, HEAD, Q = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight"
LEAST = {
    "vocab_size": 300, "hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 64,
    "max_position_embeddings": 4096,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 24}
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


def read(config: dict[str, Any]) -> ModelConfig:
    return read_config(Fields("config.json:", {"model_type": "llama"} | LEAST | config), "tiny")


def test_a_folder(write_folder: WriteFolder) -> None:
    checkpoint = load_llama_folder(write_folder())
    assert checkpoint.config == ModelConfig(
        name="tiny", vocab_size=260, hidden_size=32, intermediate_size=48, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8,
        max_model_len=128, rope_theta=10000.0, rms_norm_eps=1e-5,
    )  # fmt: skip
    assert checkpoint.tokenizer.vocab_size == 260 and checkpoint.tokenizer.encode("ab</s>")[2:] == [257]


def test_shards_are_the_same_model(write_folder: WriteFolder) -> None:
    whole = load_llama_folder(write_folder())
    arrays = {name: np.array(tensor) for name, tensor in whole.tensors.items()}
    (write_folder() / "model.safetensors").unlink()
    shards = load_llama_folder(write_folder(shards=3), "shards")
    assert shards.config.name == "shards" and shards.tensors.keys() == arrays.keys()
    assert all(np.array_equal(arrays[name], np.array(tensor)) for name, tensor in shards.tensors.items())


def test_the_folder_names_the_model(write_folder: WriteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_folder())
    assert load_llama_folder(".").config.name == "tiny"


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_absent_key_means_what_it_means_to_transformers(kind: str) -> None:
    """Number of kv heads (absent, and null), head size, epsilon, base, biases and norms, as the class has them."""
    import transformers

    both = ("num_key_value_heads", "head_dim")
    takes_null = {"llama": both, "mixtral": both[1:], "mistral": both[1:], "qwen2_moe": (), "qwen3_moe": ()}.get(kind, both[:1])
    experts = EXPERTS if FAMILIES[kind].experts else {}
    for said in ({}, *({key: None} for key in takes_null)):
        ours = read({"model_type": kind, "max_position_embeddings": 4096, **experts, **said})
        theirs = getattr(transformers, FAMILIES[kind].architecture.replace("ForCausalLM", "Config"))(**LEAST, **experts, **said)
        assert ours.num_kv_heads == theirs.num_key_value_heads
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or 256 // 64)
        assert ours.rms_norm_eps == theirs.rms_norm_eps
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
        assert theirs.hidden_act == "silu" and theirs.tie_word_embeddings is False
    import torch

    with torch.device("meta"):
        names = getattr(transformers, FAMILIES[kind].architecture)(theirs).state_dict().keys()
    assert ours.biases == {part for part in PROJECTIONS if f"model.layers.0.{part}.bias" in names}
    assert ours.qk_norm == ("model.layers.0.self_attn.q_norm.weight" in names)
    if ours.moe:
        assert ours.moe.norm_topk_prob == getattr(theirs, "norm_topk_prob", True)
        assert bool(ours.moe.shared_expert_intermediate_size) == ("model.layers.0.mlp.shared_expert_gate.weight" in names)
        assert ours.moe.num_experts == theirs.num_experts == 4


def test_flags_give_biases() -> None:
    assert read({"attention_bias": True}).biases == set(PROJECTIONS[:4])
    assert read({"mlp_bias": True}).biases == set(PROJECTIONS[4:])
    assert read({"attention_bias": True, "mlp_bias": True}).biases == set(PROJECTIONS)
    assert read({"attention_bias": False, "mlp_bias": None}).biases == set()
    assert read({"model_type": "qwen3", "attention_bias": True}).biases == set(PROJECTIONS[:4])


ROPES: list[tuple[dict[str, Any], float, Any]] = [
    ({}, 10000.0, PlainRope()),
    ({"rope_theta": 500000}, 500000.0, PlainRope()),
    ({"rope_theta": 1e6, "rope_scaling": None}, 1e6, PlainRope()),
    ({"rope_theta": 1e6, "rope_scaling": {}}, 1e6, PlainRope()),
    ({"rope_scaling": {"type": "default"}}, 10000.0, PlainRope()),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, 10000.0, LinearRope(factor=2.0)),
    ({"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 0.5}}, 10000.0, LinearRope(factor=0.5)),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, 7.0, PlainRope()),
    ({"rope_parameters": {"rope_theta": 7.0, "factor": None}, "partial_rotary_factor": 1}, 7.0, PlainRope()),
    ({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 1.0}}, 10000.0, LinearRope(factor=4.0)),
    # both: the inner base, and rope_scaling, as in transformers
    ({"rope_theta": 9.0, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, 7.0, PlainRope()),
    ({"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": {"type": "linear", "factor": 3.0}}, 1e4, LinearRope(factor=3.0)),
    (
        {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 1024}}, 5e5,
        Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_model_len=1024),
    ),
    # no original length: the context, as in transformers
    (
        {"rope_parameters": LLAMA3 | {"rope_theta": 3.0}}, 3.0,
        Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_model_len=4096),
    ),
    (
        {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 9}, "original_max_position_embeddings": 512}, 10000.0,
        Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_model_len=512),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("config", "theta", "scaling"), ROPES)
def test_both_spellings_of_the_rope(config: dict[str, Any], theta: float, scaling: Any, tmp_path: Path) -> None:
    found = read(config)
    assert (found.rope_theta, found.rope_scaling) == (theta, scaling)
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | LEAST | config))
    theirs = LlamaRotaryEmbedding(AutoConfig.from_pretrained(tmp_path)).inv_freq.numpy()
    ours = [scaling.scaled(theta ** (-2 * i / found.head_dim)) for i in range(found.head_dim // 2)]
    assert np.allclose(ours, theirs, rtol=1e-6)


def test_windows_that_change_nothing() -> None:
    wide = {"sliding_window": 4096}
    for config in (
        wide | {"model_type": "mistral"}, {"model_type": "mistral", "sliding_window": None}, {"model_type": "mistral"},
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 5, "max_window_layers": 1},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096},
        {"model_type": "qwen3", "layer_types": ["full_attention"] * 2},
        {"model_type": "llama", "sliding_window": 5},  # LlamaForCausalLM has none
    ):  # fmt: skip
        assert read(config).max_model_len == 4096


# A26: the flag and the file


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tied_and_the_head_is_there_too(write_folder: WriteFolder, dtype: Any) -> None:
    """It is compared, bit for bit, and dropped."""
    embedding = np.random.default_rng(1).standard_normal((260, 32)).astype(dtype)
    same = {EMBEDDING: embedding, HEAD: embedding.copy()}
    checkpoint = load_llama_folder(write_folder(config={"tie_word_embeddings": True}, tensors=same))
    assert checkpoint.tied and HEAD not in checkpoint.tensors
    same[HEAD][259, 31] += dtype(0.5)
    with pytest.raises(InvalidCheckpoint, match=rf"tie_word_embeddings is True; but tensor {HEAD} differs from {EMBEDDING}"):
        load_llama_folder(write_folder(config={"tie_word_embeddings": True}, tensors=same))


def test_tied_and_the_head_is_absent(write_folder: WriteFolder) -> None:
    assert load_llama_folder(write_folder(config={"tie_word_embeddings": True}, tensors={HEAD: None})).tied


def test_untied_and_the_head_is_there(write_folder: WriteFolder) -> None:
    checkpoint = load_llama_folder(write_folder())
    assert not checkpoint.tied
    assert not np.array_equal(np.array(checkpoint.tensors[HEAD]), np.array(checkpoint.tensors[EMBEDDING]))


@pytest.mark.parametrize("flag", [False, None])
def test_untied_and_the_head_is_absent(write_folder: WriteFolder, flag: bool | None) -> None:
    folder = write_folder(config={"tie_word_embeddings": flag}, tensors={HEAD: None})
    with pytest.raises(InvalidCheckpoint, match=rf"tie_word_embeddings is {flag or '(False|missing)'}.*expected a tensor {HEAD}"):
        load_llama_folder(folder)


def test_stored_frequencies_are_ignored(write_folder: WriteFolder) -> None:
    inv_freq = np.ones(4, np.float32)
    checkpoint = load_llama_folder(write_folder(tensors={"model.layers.0.self_attn.rotary_emb.inv_freq": inv_freq}))
    assert not any("inv_freq" in name for name in checkpoint.tensors)
    for name in ("model.layers.0.rotary_emb.inv_freq", "model.layers.x.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"):
        with pytest.raises(InvalidCheckpoint, match=f"tensor '{name}' has no place"):
            load_llama_folder(write_folder(tensors={name: inv_freq}))


def test_a_padded_vocabulary(write_folder: WriteFolder) -> None:
    """The embedding may have more rows than the tokenizer has tokens, not fewer."""
    rows = {name: np.ones((512, 32), np.float32) for name in (EMBEDDING, HEAD)}
    assert load_llama_folder(write_folder(config={"vocab_size": 512}, tensors=rows)).tokenizer.vocab_size == 512
    few = {name: np.ones((200, 32), np.float32) for name in (EMBEDDING, HEAD)}
    with pytest.raises(InvalidCheckpoint, match="258 tokens; the embedding has 200 rows"):
        load_llama_folder(write_folder(config={"vocab_size": 200}, tensors=few))


MIXTRAL = {"model_type": "mixtral", "architectures": None, "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN3_MOE = MIXTRAL | {"model_type": "qwen3_moe", "moe_intermediate_size": 48}
QWEN2_MOE = QWEN3_MOE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 8, "qkv_bias": False}
YARN = {"rope_type": "yarn", "factor": 4.0}
REFUSED: dict[str, dict[str, Any]] = {
    "model_type is missing; expected str": {"model_type": None},
    "model_type is 'gemma2'; supported: llama, mistral, qwen2, qwen3": {"model_type": "gemma2"},
    "model_type is 'deepseek_v3'": {"model_type": "deepseek_v3"},
    "model_type is 'qwen3_next'": {"model_type": "qwen3_next"},
    r"architectures is \['LlamaForCausalLM'\]; supported: \['MixtralForCausalLM'\]": {"model_type": "mixtral"},
    r"model_type is \['llama'\]; expected str": {"model_type": ["llama"]},
    r"architectures is \['LlamaForSequenceClassification'\]; supported: \['LlamaForCausalLM'\]": {
        "architectures": ["LlamaForSequenceClassification"]
    },
    r"architectures is \['MistralForCausalLM'\]": {"architectures": ["MistralForCausalLM"]},
    "hidden_act is 'gelu'; supported: 'silu'": {"hidden_act": "gelu"},
    "quantization_config is .*gptq.*; supported: weights that are not": {"quantization_config": {"quant_method": "gptq"}},
    "compression_config is": {"compression_config": {}},
    "hidden_size is missing; expected int": {"hidden_size": None},
    "num_hidden_layers is missing": {"num_hidden_layers": None},
    "max_position_embeddings is missing": {"max_position_embeddings": None},
    "hidden_size is '32'; expected int": {"hidden_size": "32"},
    "hidden_size is 32.0; expected int": {"hidden_size": 32.0},
    "num_hidden_layers is True; expected int": {"num_hidden_layers": True},
    r"num_attention_heads is \[4\]; expected int": {"num_attention_heads": [4]},
    "num_heads is 0": {"num_attention_heads": 0},
    "num_heads is -4": {"num_attention_heads": -4},
    "num_layers is -1": {"num_hidden_layers": -1},
    "num_heads 4 is not a multiple of num_kv_heads 3": {"num_key_value_heads": 3},
    "num_kv_heads is 0": {"num_key_value_heads": 0},
    "head_dim is 7": {"head_dim": 7},
    "max_model_len is 1000000000; expected at most": {"max_position_embeddings": 10**9},
    f"hidden_size is {10**20}; expected a number of 64 bits": {"hidden_size": 10**20},
    "layers.1.input_layernorm.weight is missing": {"num_hidden_layers": 10**9},
    r"embed_tokens.weight has shape \(260, 32\); expected \(4611686018427387904, 32\)": {"vocab_size": 2**62},
    r"k_proj.weight has shape \(16, 32\); expected \(32, 32\)": {"num_key_value_heads": 4},
    r"q_proj.weight has shape \(32, 32\); expected \(64, 32\)": {"head_dim": 16},
    r"gate_proj.weight has shape \(48, 32\); expected \(47, 32\)": {"intermediate_size": 47},
    "self_attn.q_proj.bias is missing": {"attention_bias": True},
    "mlp.gate_proj.bias is missing": {"mlp_bias": True},
    "attention_bias is 'yes'; expected bool": {"attention_bias": "yes"},
    "attention_bias is 1; expected bool": {"attention_bias": 1},
    "tie_word_embeddings is 'no'; expected bool": {"tie_word_embeddings": "no"},
    "rms_norm_eps is '1e-5'; expected float": {"rms_norm_eps": "1e-5"},
    "rms_norm_eps is 1.0": {"rms_norm_eps": 1},
    "rope_theta is 0.0; expected a positive number": {"rope_theta": 0},
    "rope_theta is -1.5": {"rope_theta": -1.5},
    "rope_scaling is 'linear'; expected dict": {"rope_scaling": "linear"},
    "rope_scaling: rope_type is 'yarn'; supported: default, linear, llama3": {"rope_scaling": YARN},
    "rope_parameters: rope_type is 'yarn'": {"rope_parameters": YARN},
    "rope_scaling: type is 'dynamic'": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "rope_scaling: rope_type is 'longrope'": {"rope_scaling": {"rope_type": "longrope"}},
    "rope_scaling: type is 'mrope'": {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    "rope_scaling: rope_type is 5; expected str": {"rope_scaling": {"rope_type": 5}},
    "rope_scaling: factor is missing; expected float": {"rope_scaling": {"type": "linear"}},
    "factor is 0.0; expected a positive number": {"rope_scaling": {"type": "linear", "factor": 0}},
    "factor is -1; expected a positive number|factor is -1.0": {"rope_scaling": {"type": "linear", "factor": -1}},
    "rope_scaling: factor is True; expected float": {"rope_scaling": {"type": "linear", "factor": True}},
    "rope_scaling: factor is 4.0; not known for 'default'": {"rope_scaling": {"factor": 4.0}},
    "rope_parameters: full_attention is .*; not known": {"rope_parameters": {"full_attention": {"rope_theta": 7.0}}},
    "rope_scaling: high_freq_factor is missing": {"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
    "low_freq_factor is 4.0 and high_freq_factor 4.0": {"rope_scaling": LLAMA3 | {"low_freq_factor": 4}},
    "original_max_model_len is 0": {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0}},
    "partial_rotary_factor is 0.5; supported: 1.0": {"partial_rotary_factor": 0.5},
    "rope_parameters: partial_rotary_factor is 0.25": {"rope_parameters": {"rope_theta": 1.0, "partial_rotary_factor": 0.25}},
    r"sliding_window is 4096; supported: null, or at least max_position_embeddings \(8192\)": {
        "model_type": "mistral", "architectures": None, "max_position_embeddings": 8192
    },
    "sliding_window is 64; supported": {"model_type": "mistral", "architectures": None, "sliding_window": 64},
    "sliding_window is 127; supported": {
        "model_type": "qwen2", "architectures": None, "use_sliding_window": True, "sliding_window": 127
    },
    "sliding_window is True; supported": {"model_type": "mistral", "architectures": None, "sliding_window": True},
    r"layer_types is \['full_attention', 'sliding_attention'\]; supported: full_attention": {
        "layer_types": ["full_attention", "sliding_attention"]
    },
    "self_attn.q_proj.bias is missing; expected": {"model_type": "qwen2", "architectures": None},
    "mlp.gate.weight is missing; expected one of shape": MIXTRAL,
    "num_experts is 0; expected a whole number": MIXTRAL | {"num_local_experts": 0},
    "num_experts is 4097 and num_experts_per_tok 2; expected at most 4096": MIXTRAL | {"num_local_experts": 4097},
    f"num_experts is {2**40} and": MIXTRAL | {"num_local_experts": 2**40},
    "num_experts_per_tok 5; expected .* not more of them per token": MIXTRAL | {"num_experts_per_tok": 5},
    "num_experts_per_tok is True; expected int": MIXTRAL | {"num_experts_per_tok": True},
    "num_experts_per_tok is missing; expected int": MIXTRAL | {"num_experts_per_tok": None},
    "num_local_experts is missing; expected int": MIXTRAL | {"num_local_experts": None},
    "num_local_experts is 4; supported: 8": MIXTRAL | {"num_experts": 8},
    "moe_intermediate_size is missing; expected int": QWEN3_MOE | {"moe_intermediate_size": None},
    "moe_intermediate_size is -3": QWEN3_MOE | {"moe_intermediate_size": -3},
    "norm_topk_prob is 1; expected bool": QWEN3_MOE | {"norm_topk_prob": 1},
    "shared_expert_intermediate_size is missing; expected int": QWEN2_MOE | {"shared_expert_intermediate_size": None},
    "shared_expert_intermediate_size is -1": QWEN2_MOE | {"shared_expert_intermediate_size": -1},
    r"mlp_only_layers is \[0\]; supported: \[\]": QWEN3_MOE | {"mlp_only_layers": [0]},
    "decoder_sparse_step is 2; supported: 1": QWEN2_MOE | {"decoder_sparse_step": 2},
    "sliding_window is 64; supported: null, or": MIXTRAL | {"sliding_window": 64},
    "sliding_window is 4; supported: null, or": QWEN2_MOE | {"sliding_window": 4, "use_sliding_window": True},
    "qkv_bias is 'no'; expected bool": QWEN2_MOE | {"qkv_bias": "no"},
    "self_attn.q_norm.weight is missing; expected": {"model_type": "qwen3", "architectures": None, "head_dim": 8},
}  # fmt: skip


@pytest.mark.parametrize("says", REFUSED)
def test_refused_by_name(write_folder: WriteFolder, says: str) -> None:
    folder = write_folder(config=REFUSED[says])
    with pytest.raises(InvalidCheckpoint, match=says) as caught:
        load_llama_folder(folder)
    assert str(caught.value).startswith((f"{folder / 'config.json'}: ", f"{folder}: "))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"rope_theta": Infinity}', "Infinity is not a number of JSON"),
        ('{"rope_theta": -Infinity}', "-Infinity is not a number"),
        ('{"rope_theta": NaN}', "NaN is not a number"),
        ('{"rope_theta": 1, "rope_theta": 2}', "key 'rope_theta' occurs 2 times"),
        ('{"rope_scaling": {"factor": 1, "factor": 2}}', "key 'factor' occurs 2 times"),
        ("null", "holds a NoneType; expected a JSON object"),
        ("", "not JSON that can be used"),
    ],
)
def test_a_config_that_is_no_object(write_folder: WriteFolder, text: str, says: str) -> None:
    folder = write_folder()
    (folder / "config.json").write_text(text)
    with pytest.raises(InvalidCheckpoint, match=f"config.json: .*{says}"):
        load_llama_folder(folder)


@pytest.mark.parametrize("number", ["1e999", "1" + "0" * 400 + ".0"])
def test_a_number_too_large_for_a_float(write_folder: WriteFolder, number: str) -> None:
    folder = write_folder(config={"rope_theta": 5.5})
    text = (folder / "config.json").read_text().replace("5.5", number)
    (folder / "config.json").write_text(text)
    with pytest.raises(InvalidCheckpoint, match="rope_theta is inf; expected a positive number"):
        load_llama_folder(folder)


def test_tensors_that_are_refused(write_folder: WriteFolder) -> None:
    for tensors, says in (
        ({Q: None}, f"tensor {Q} is missing"),
        ({"model.layers.1.mlp.up_proj.weight": np.ones((48, 32), np.float32)}, "up_proj.weight' has no place in a decoder of 1"),
        ({"model.layers.0.self_attn.q_proj.bias": np.ones(32, np.float32)}, "q_proj.bias' has no place"),
        ({Q: np.ones((32, 32))}, "q_proj.weight' has type F64"),
        ({Q: np.ones((1, 32, 32), np.float32)}, r"q_proj.weight has shape \(1, 32, 32\); expected \(32, 32\)"),
        ({Q: np.ones((0, 32), np.float32)}, r"q_proj.weight has shape \(0, 32\)"),
        ({"model.norm.weight": np.ones((), np.float32)}, r"norm.weight has shape \(\); expected \(32,\)"),
        ({EMBEDDING: None}, f"{EMBEDDING} is missing"),
    ):
        with pytest.raises(InvalidCheckpoint, match=says):
            load_llama_folder(write_folder(tensors=tensors))


def test_mixtral_s_names_of_experts(write_folder: WriteFolder) -> None:
    """They become ours; a tensor that is there twice is refused, and so is one too many."""
    dense = {f"model.layers.0.mlp.{part}_proj.weight": None for part in ("gate", "up", "down")}
    block = "model.layers.0.block_sparse_moe."
    shapes = {"w1": (48, 32), "w2": (32, 48), "w3": (48, 32)}
    experts = {f"{block}experts.{e}.{w}.weight": np.full(shape, e, np.float32) for e in range(4) for w, shape in shapes.items()}
    whole = dense | experts | {f"{block}gate.weight": np.ones((4, 32), np.float32)}
    made = load_llama_folder(write_folder(config=MIXTRAL, tensors=whole)).tensors
    assert made["model.layers.0.mlp.experts.3.down_proj.weight"].shape == (32, 48)
    assert made["model.layers.0.mlp.experts.2.up_proj.weight"].max() == 2
    for extra, says in (
        ({"model.layers.0.mlp.gate.weight": np.ones((4, 32), np.float32)}, "is there under another name too"),
        ({f"{block}experts.4.w1.weight": np.ones((48, 32), np.float32)}, "experts.4.gate_proj.weight' has no place"),
        ({f"{block}experts.1.w2.weight": np.ones((48, 32), np.float32)}, r"experts.1.down_proj.weight has shape \(48, 32\)"),
        ({f"{block}experts.1.w3.weight": None}, "experts.1.up_proj.weight is missing"),
        ({"model.layers.0.mlp.experts.gate_up_proj": np.ones((4, 96, 32), np.float32)}, "experts.gate_up_proj' has no place"),
    ):
        with pytest.raises(InvalidCheckpoint, match=says):
            load_llama_folder(write_folder(config=MIXTRAL, tensors=whole | extra))


def test_a_folder_without_or_with_two_sets_of_weights(write_folder: WriteFolder) -> None:
    folder = write_folder(shards=2)
    save_file({"a": np.ones(1, np.float32)}, folder / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"has model.safetensors and model.safetensors.index.json; expected one of"):
        load_llama_folder(folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(
        InvalidCheckpoint, match=r"has no weights; expected one of model.safetensors, model.safetensors.index.json"
    ):
        load_llama_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"config.json: cannot be read: no such file"):
        load_llama_folder(folder)
