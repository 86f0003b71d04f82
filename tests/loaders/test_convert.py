"""Writers: what goes out comes back, bit for bit; `transformers` and `gguf` read it; nothing half-written stays."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from labcore.core.config import LinearRope, Llama3Rope, ModelConfig
from labcore.core.errors import InvalidCheckpoint
from labcore.lab.equivalence import all_logits
from labcore.loaders.checkpoint import HEAD, Checkpoint, Tensor, required_tensors
from labcore.loaders.dense import decode, encode
from labcore.loaders.gguf_writer import write_gguf
from labcore.loaders.load import load_checkpoint
from labcore.loaders.safetensors_writer import write_safetensors
from labcore.loaders.writing import float32
from labcore.model.weights import load_model

LAB = load_checkpoint("lab")
QKV = frozenset({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"})
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8,
    "max_model_len": 256,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"untied": True},
    "one kv head": {"num_kv_heads": 1},
    "all kv heads": {"num_kv_heads": 4},
    "wide heads": {"head_dim": 16},
    "linear rope": {"rope_scaling": LinearRope(factor=4.0)},
    "llama3 rope": {
        "rope_scaling": Llama3Rope(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_model_len=64),
        "head_dim": 16,
        "rope_theta": 5e5,
    },
    "qwen2": {"biases": QKV},
    "llama biases": {"biases": QKV | {"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}},
    "qwen3": {"qk_norm": True, "untied": True, "head_dim": 16},
}


def checkpoint_of(*, untied: bool = False, seed: int = 0, **fields: Any) -> Checkpoint:
    """A random model over the lab's vocabulary."""
    config = dataclasses.replace(LAB.config, name="tiny", **SMALL | fields)
    rng = np.random.default_rng(seed)
    shapes = required_tensors(config) | ({HEAD: (config.vocab_size, config.hidden_size)} if untied else {})
    tensors = {name: rng.standard_normal(shape, np.float32) * np.float32(0.2) for name, shape in shapes.items()}
    return Checkpoint(config, tensors, LAB.tokenizer)


def assert_equal(ours: Checkpoint, theirs: Checkpoint) -> None:
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name in ours.tensors:
        assert np.array_equal(float32(ours.tensors[name]), float32(theirs.tensors[name])), name
    a, b = ours.config, theirs.config
    assert dataclasses.replace(a, rms_norm_eps=0.5, rope_theta=1.0, name="") == dataclasses.replace(
        b, rms_norm_eps=0.5, rope_theta=1.0, name=""
    )
    assert np.float32(a.rms_norm_eps) == np.float32(b.rms_norm_eps) and np.float32(a.rope_theta) == np.float32(b.rope_theta)


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    return checkpoint_of(**CASES[request.param])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_gguf_to_safetensors_to_gguf_is_the_same_file(checkpoint: Checkpoint, dtype: str, tmp_path: Path) -> None:
    first, folder, second = tmp_path / "tiny.gguf", tmp_path / "tiny", tmp_path / "again" / "tiny.gguf"
    second.parent.mkdir()
    write_gguf(checkpoint, first, dtype)
    write_safetensors(load_checkpoint(first), folder, dtype)
    write_gguf(load_checkpoint(folder), second, dtype)
    assert first.read_bytes() == second.read_bytes()
    rounded = {
        name: decode(encode(float32(t), dtype), dtype) if len(t.shape) == 2 else t for name, t in checkpoint.tensors.items()
    }
    again = tmp_path / "again" / "tiny"
    write_safetensors(load_checkpoint(second), again, dtype)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {p.name: p.read_bytes() for p in again.iterdir()}
    for path in (first, folder):
        assert_equal(load_checkpoint(path), dataclasses.replace(checkpoint, tensors=rounded))


def test_transformers_reads_the_folder_and_agrees(checkpoint: Checkpoint, tmp_path: Path) -> None:
    write_safetensors(checkpoint, tmp_path / "tiny", max_shard_bytes=60_000)
    assert len(list((tmp_path / "tiny").glob("model-*.safetensors"))) > 1
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny", dtype=torch.float32).eval()
    # for model_type qwen2, AutoTokenizer puts Qwen2's own word rule in the place of the file's: the class is named here
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "tiny")
    text = "To be, or not to be: é東<|im_end|> 12"
    ids = checkpoint.tokenizer.encode(text)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    got = all_logits(load_model(load_checkpoint(tmp_path / "tiny")), ids)
    assert (np.abs(got - expected).max(axis=1) / np.abs(expected).max(axis=1)).max() < 1e-4


def test_gguf_reads_the_file(checkpoint: Checkpoint, tmp_path: Path) -> None:
    write_gguf(checkpoint, tmp_path / "tiny.gguf", "F16")
    reader = gguf.GGUFReader(tmp_path / "tiny.gguf")
    names = {tensor.name: tensor for tensor in reader.tensors}
    embedding = names["token_embd.weight"]
    assert embedding.tensor_type == gguf.GGMLQuantizationType.F16
    assert np.array_equal(embedding.data, encode(float32(checkpoint.tensors["model.embed_tokens.weight"]), "F16"))
    assert len(names) - ("rope_freqs.weight" in names) == len(checkpoint.tensors)
    assert all(tensor.tensor_type == gguf.GGMLQuantizationType.F32 for tensor in reader.tensors if len(tensor.shape) == 1)
    architecture = reader.get_field("general.architecture").contents()
    assert reader.get_field(f"{architecture}.block_count").contents() == 2
    assert len(reader.get_field("tokenizer.ggml.tokens").contents()) == checkpoint.config.vocab_size


def test_the_real_model_goes_round(tmp_path: Path) -> None:
    """SmolLM2's packed file, to safetensors and to GGUF: the same numbers, tokens and merges."""
    source = load_checkpoint("smollm2")
    write_safetensors(source, tmp_path / "smollm2")
    back = load_checkpoint(tmp_path / "smollm2")
    assert_equal(back, source)
    text = "Hello 2026! Zürich 東京 <|im_start|>user"
    assert back.tokenizer.encode(text) == source.tokenizer.encode(text)
    assert back.tokenizer.chat_template == source.tokenizer.chat_template
    assert back.tokenizer.eos_token_ids == source.tokenizer.eos_token_ids


@settings(max_examples=20)
@given(config=st.data())
def test_any_shape_goes_round(tmp_path_factory: pytest.TempPathFactory, config: st.DataObject) -> None:
    draw = config.draw
    kv_heads = draw(st.integers(1, 3))
    fields = {
        "num_kv_heads": kv_heads,
        "num_heads": kv_heads * draw(st.integers(1, 3)),
        "head_dim": 2 * draw(st.integers(1, 9)),
        "hidden_size": draw(st.integers(1, 50)),
        "intermediate_size": draw(st.integers(1, 70)),
        "num_layers": draw(st.integers(1, 3)),
        "rope_theta": draw(st.floats(1.0, 1e7, width=32)),
        "untied": draw(st.booleans()),
    }
    folder, checkpoint = tmp_path_factory.mktemp("any"), checkpoint_of(**fields)
    write_gguf(checkpoint, folder / "tiny.gguf")
    write_safetensors(load_checkpoint(folder / "tiny.gguf"), folder / "tiny")
    assert_equal(load_checkpoint(folder / "tiny"), checkpoint)


def test_shards_end_before_they_are_too_large(tmp_path: Path) -> None:
    write_safetensors(checkpoint_of(), tmp_path / "tiny", max_shard_bytes=20_000)
    index = json.loads((tmp_path / "tiny" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files == sorted(path.name for path in (tmp_path / "tiny").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert index["metadata"]["total_size"] == 4 * ModelConfig.num_parameters.fget(checkpoint_of().config)  # type: ignore[attr-defined]


@pytest.mark.parametrize("write", [write_gguf, write_safetensors])
def test_nothing_is_overwritten_and_nothing_half_written_stays(write: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    too_large: dict[str, Tensor] = dict(checkpoint_of().tensors) | {
        "model.embed_tokens.weight": np.full((1024, 32), 1e6, np.float32)
    }
    with pytest.raises(InvalidCheckpoint, match=r"1e\+06, which F16 cannot"):
        write(dataclasses.replace(checkpoint_of(), tensors=too_large), out, "F16")
    assert list(tmp_path.iterdir()) == []
    write(checkpoint_of(), out)
    with pytest.raises(InvalidCheckpoint, match="exists; remove it"):
        write(checkpoint_of(seed=1), out)
    assert_equal(load_checkpoint(out), checkpoint_of())
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("write", [write_gguf, write_safetensors])
def test_writers_at_the_same_time_do_not_meet(write: Any, tmp_path: Path) -> None:
    """Each writes in a place of its own; the first to end has the name, and what has it is whole."""
    mine = tmp_path / "out.part"  # somebody's own
    mine.write_text("thesis")
    checkpoints = [checkpoint_of(seed=seed) for seed in range(4)]

    def attempt(checkpoint: Checkpoint) -> None:
        with contextlib.suppress(InvalidCheckpoint, OSError):  # the name is taken by now
            write(checkpoint, tmp_path / "out")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(attempt, checkpoints))
    got = load_checkpoint(tmp_path / "out")
    same = [np.array_equal(got.tensors["model.norm.weight"], c.tensors["model.norm.weight"]) for c in checkpoints]
    assert sum(same) == 1
    assert_equal(got, checkpoints[same.index(True)])
    assert mine.read_text() == "thesis" and sorted(tmp_path.iterdir()) == [tmp_path / "out", mine]


@pytest.mark.parametrize("write", [write_gguf, write_safetensors])
def test_a_model_that_cannot_be_said_is_refused(write: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"biases on \['mlp.up_proj'\]"):
        write(checkpoint_of(biases=frozenset({"mlp.up_proj"})), tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fields", [{"low_freq_factor": 2.0}, {"original_max_model_len": 1_000_000}])
def test_a_rope_that_a_gguf_cannot_say_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    rope = dataclasses.replace(CASES["llama3 rope"]["rope_scaling"], **fields)
    with pytest.raises(InvalidCheckpoint, match="a GGUF can say it for"):
        write_gguf(checkpoint_of(rope_scaling=rope), tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []
    write_safetensors(checkpoint_of(rope_scaling=rope), tmp_path / "folder")
    assert load_checkpoint(tmp_path / "folder").config.rope_scaling == rope
