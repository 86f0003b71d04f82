"""A damaged folder raises InvalidCheckpoint: it never crashes, hangs, or takes memory that its files' sizes do not justify."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import SECONDS, load_all, loads
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.safetensors_file import read_safetensors

WriteFolder = Callable[..., Path]
many = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])


def header_size(whole: bytes) -> int:
    return 8 + int.from_bytes(whole[:8], "little")


def test_every_truncation(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    save_file({name: np.ones(3, np.float16) for name in "abc"}, path)
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(InvalidCheckpoint, match=f"{path}: cannot be read"):
            read_safetensors(path)


def test_truncations_of_a_model(write_folder: WriteFolder) -> None:
    for shards, name in ((0, "model.safetensors"), (2, "part-1.safetensors")):
        path = write_folder(shards=shards) / name
        whole = path.read_bytes()
        assert loads(path.parent)
        cuts = random.Random(0).sample(range(len(whole)), 300)
        assert not any(load_all(path, (whole[:cut] for cut in cuts), path.parent))
        path.unlink()


@pytest.mark.parametrize("shards", [0, 2])
def test_random_flips(write_folder: WriteFolder, shards: int) -> None:
    """A few bits changed in a header, or at times in the weights."""
    path = write_folder(shards=shards) / ("part-1.safetensors" if shards else "model.safetensors")
    whole, draw = path.read_bytes(), random.Random(1)

    def damaged() -> Iterator[bytes]:
        for _ in range(800):
            data = bytearray(whole)
            for _ in range(draw.choice((1, 1, 2, 8))):
                data[draw.randrange(draw.choice((header_size(whole), header_size(whole), len(data))))] ^= 1 << draw.randrange(8)
            yield bytes(data)

    outcomes = load_all(path, damaged(), path.parent)
    assert any(outcomes) and not all(outcomes)


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "1e3", "9" * 18, "9" * 20, "9" * 400, "null", "true", '"1"', "[" * 300])
def test_an_absurd_number_anywhere(write_folder: WriteFolder, number: str) -> None:
    """Each number of the header in turn: shapes and offsets."""
    path = write_folder() / "model.safetensors"
    whole = path.read_bytes()
    text, data = whole[8 : header_size(whole)].decode(), whole[header_size(whole) :]

    def damaged() -> Iterator[bytes]:
        for at in range(len(text)):
            if text[at].isdigit() and text[at - 1] in "[,":
                end = next(i for i in range(at, len(text)) if not text[i].isdigit())
                if text[at:end] == number:
                    continue
                header = (text[:at] + number + text[end:]).encode()
                yield len(header).to_bytes(8, "little") + header + data

    outcomes = load_all(path, damaged(), path.parent)
    assert len(outcomes) > 40 and not any(outcomes)


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**32, 2**63, 2**64 - 1])
def test_a_header_length_that_is_a_lie(write_folder: WriteFolder, length: int) -> None:
    path = write_folder() / "model.safetensors"
    whole = path.read_bytes()
    assert not any(load_all(path, [length.to_bytes(8, "little") + whole[8:]], path.parent))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_flips_in_json(write_folder: WriteFolder, name: str) -> None:
    path = write_folder(shards=2) / name
    whole, draw = path.read_bytes(), random.Random(2)

    def damaged() -> Iterator[bytes]:
        for _ in range(800):
            data = bytearray(whole)
            for _ in range(draw.choice((1, 1, 2, 8))):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            yield bytes(data[: draw.choice((len(data), draw.randrange(len(data))))])

    outcomes = load_all(path, damaged(), path.parent)
    assert not all(outcomes)


scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8)
    | st.sampled_from([0, 1, 2, 4, 8, 16, 32, 128, 260, 10**9, 2**63, 2**64, 0.5, 1e308, "llama", "qwen2", "qwen3", "linear"])
    | st.sampled_from(["mixtral", "qwen2_moe", "qwen3_moe"])
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
KEYS = (
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "head_dim", "hidden_act",
    "rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window",
    "layer_types", "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
    "shared_expert_intermediate_size", "qkv_bias", "mlp_only_layers", "decoder_sparse_step",
    "partial_rotary_factor", "original_max_position_embeddings", "quantization_config", "eos_token_id", "bos_token_id",
)  # fmt: skip
ROPE_KEYS = (
    "type",
    "rope_type",
    "factor",
    "rope_theta",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
ropes = st.dictionaries(st.sampled_from(ROPE_KEYS), scalars | st.sampled_from(["llama3", "default"]))


def put(path: Path, document: Any) -> bool:
    path.write_text(json.dumps(document))  # with NaN and Infinity, as Python writes them
    began = time.process_time()
    outcome = loads(path.parent)
    assert time.process_time() - began < SECONDS
    return outcome


@many
@given(changed=st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=3))
def test_any_value_in_a_config(write_folder: WriteFolder, changed: dict[str, Any]) -> None:
    path = write_folder() / "config.json"
    put(path, json.loads(path.read_text()) | changed)


@many
@given(rope=ropes, at=st.sampled_from(["rope_scaling", "rope_parameters"]))
def test_any_rope(write_folder: WriteFolder, rope: dict[str, Any], at: str) -> None:
    path = write_folder() / "config.json"
    put(path, json.loads(path.read_text()) | {at: rope})


@many
@given(document=values)
def test_any_document_for_a_config(write_folder: WriteFolder, document: Any) -> None:
    assert not put(write_folder() / "config.json", document)


places = st.sampled_from(["part-0.safetensors", "part-1.safetensors", "part-2.safetensors", "../tiny/part-0.safetensors", "a/b"])


@many
@given(data=st.data())
def test_any_index(write_folder: WriteFolder, data: st.DataObject) -> None:
    path = write_folder(shards=2) / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    sound = dict(index["weight_map"])
    names = st.sampled_from(sorted(sound)) | st.text(max_size=8)
    index["weight_map"] |= data.draw(st.dictionaries(names, places | values, max_size=2))
    for name in data.draw(st.lists(st.sampled_from(sorted(sound)), max_size=1)):
        del index["weight_map"][name]
    assert put(path, index) == (index["weight_map"] == sound)


@many
@given(document=values | st.dictionaries(st.just("weight_map"), values))
def test_any_document_for_an_index(write_folder: WriteFolder, document: Any) -> None:
    assert not put(write_folder(shards=2) / "model.safetensors.index.json", document)


def test_a_large_index(write_folder: WriteFolder) -> None:
    """A hundred thousand names: of one shard, of as many shards, and one of them twice."""
    path = write_folder(shards=2) / "model.safetensors.index.json"
    for shard in ("part-0.safetensors", "part-{}.safetensors"):
        assert not put(path, {"weight_map": {f"tensor {i}": shard.format(i) for i in range(100_000)}})
    began = time.process_time()
    path.write_text('{"weight_map": {' + ",".join(f'"{i % 99_999}": "part-0.safetensors"' for i in range(100_000)) + "}}")
    assert not loads(path.parent)
    assert time.process_time() - began < SECONDS
