"""Checkpoints that `transformers` saved: our logits against its own, from the same files, on every backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hugging_face import VOCAB_SIZE, row_error, save_model, their_logits
from support import BACKENDS

from labcore.core.config import PROJECTIONS, LinearRope, Llama3Rope, PlainRope
from labcore.lab.equivalence import all_logits
from labcore.loaders.checkpoint import HEAD, Checkpoint, LazyTensors
from labcore.loaders.load import load_checkpoint
from labcore.model.weights import load_model

TOKENS = np.random.default_rng(0).integers(0, VOCAB_SIZE, 100).tolist()
TOLERANCE, LARGE_GAP = 1e-4, 1e-3
# with heads of 16 and this base, some waves fit often into 64 positions, some a few times, some less than once
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}

CASES: dict[str, dict[str, Any]] = {
    "llama": {"kind": "Llama"},
    "tied": {"kind": "Llama", "tie_word_embeddings": True},
    "one kv head": {"kind": "Llama", "num_key_value_heads": 1},
    "as many kv heads as heads": {"kind": "Llama", "num_key_value_heads": 4},
    "head size apart from hidden": {"kind": "Llama", "head_dim": 24},
    "attention biases": {"kind": "Llama", "attention_bias": True},
    "mlp biases": {"kind": "Llama", "mlp_bias": True},
    "another base": {"kind": "Llama", "rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
    "llama3 rope": {"kind": "Llama", "rope_parameters": LLAMA3},
    "linear rope": {"kind": "Llama", "rope_parameters": LINEAR},
    "bfloat16": {"kind": "Llama", "dtype": "bfloat16"},
    "float16": {"kind": "Llama", "dtype": "float16"},
    "shards": {"kind": "Llama", "max_shard_size": "50KB"},
    "tied bfloat16 shards": {"kind": "Llama", "tie_word_embeddings": True, "dtype": "bfloat16", "max_shard_size": "40KB"},
    "mistral": {"kind": "Mistral", "sliding_window": None},
    "mistral with a window as wide as the context": {"kind": "Mistral", "sliding_window": 128, "head_dim": 32},
    "qwen2": {"kind": "Qwen2"},
    "qwen2 tied bfloat16": {"kind": "Qwen2", "tie_word_embeddings": True, "dtype": "bfloat16"},
    "qwen3": {"kind": "Qwen3", "head_dim": 32},
    "qwen3 tied with biases": {"kind": "Qwen3", "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, np.ndarray]]:
    """The folder of a case, and transformers' logits from it."""
    made: dict[str, tuple[Path, np.ndarray]] = {}

    def make(case: str) -> tuple[Path, np.ndarray]:
        if case not in made:
            folder = save_model(tmp_path_factory.mktemp("model"), **CASES[case])
            made[case] = folder, their_logits(folder, TOKENS)
        return made[case]

    return make


Saved = Callable[[str], tuple[Path, np.ndarray]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(saved: Saved, case: str, backend: str) -> None:
    folder, theirs = saved(case)
    ours = all_logits(load_model(folder, backend=BACKENDS[backend]()), TOKENS)
    error = row_error(ours, theirs)
    print(f"{case}, {backend}: largest row error {error:.1e}")
    assert error <= TOLERANCE
    second, first = np.partition(theirs, -2)[:, -2:].T
    clear = first - second > LARGE_GAP
    assert clear.sum() > 90
    assert np.array_equal(ours.argmax(axis=1)[clear], theirs.argmax(axis=1)[clear])


def test_what_was_read(saved: Saved) -> None:
    """That each case is what its name says: a feature that is in no file would be right by accident."""

    def read(case: str) -> Checkpoint:
        return load_checkpoint(saved(case)[0])

    assert [case for case in CASES if read(case).tied] == [case for case in CASES if "tied" in case]
    assert read("attention biases").config.biases == set(PROJECTIONS[:4]) == read("qwen3 tied with biases").config.biases
    assert read("mlp biases").config.biases == set(PROJECTIONS[4:])
    assert read("qwen2").config.biases == set(PROJECTIONS[:3])
    assert [case for case in CASES if read(case).config.qk_norm] == ["qwen3", "qwen3 tied with biases"]
    assert read("head size apart from hidden").config.q_size == 96
    assert read("another base").config.rope_theta == 777.0
    assert read("linear rope").config.rope_scaling == LinearRope(factor=2.5)
    assert read("llama3 rope").config.rope_scaling == Llama3Rope(
        factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_model_len=64
    )
    shards = {case: len(list(saved(case)[0].glob("*.safetensors"))) for case in CASES}
    assert [case for case, count in shards.items() if count > 1] == ["shards", "tied bfloat16 shards"]


def without(checkpoint: Checkpoint, ending: str) -> Checkpoint:
    tensors, shapes = checkpoint.tensors, checkpoint.shapes
    neutral = np.zeros if ending == ".bias" else np.ones
    return replace(
        checkpoint,
        tensors=LazyTensors(shapes, lambda name: neutral(shapes[name], np.float32) if name.endswith(ending) else tensors[name]),
    )


@pytest.mark.parametrize(
    ("case", "ending"),
    [
        ("attention biases", ".bias"),
        ("mlp biases", ".bias"),
        ("qwen2", ".bias"),
        ("qwen3", "q_norm.weight"),
        ("llama", "norm.weight"),
    ],
)
def test_a_feature_that_is_left_out_is_seen(saved: Saved, case: str, ending: str) -> None:
    folder, theirs = saved(case)
    assert row_error(all_logits(load_model(without(load_checkpoint(folder), ending), backend="numpy"), TOKENS), theirs) > 0.01


@pytest.mark.parametrize("case", ["llama3 rope", "linear rope"])
def test_a_scaling_that_is_left_out_is_seen(saved: Saved, case: str) -> None:
    folder, theirs = saved(case)
    checkpoint = load_checkpoint(folder)
    plain = replace(checkpoint, config=replace(checkpoint.config, rope_scaling=PlainRope()))
    assert row_error(all_logits(load_model(plain, backend="numpy"), TOKENS), theirs) > 0.01


@pytest.mark.parametrize("case", ["another base", "linear rope", "llama3 rope"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_the_older_spelling(saved: Saved, case: str, key: str, tmp_path: Path) -> None:
    """`rope_theta` beside `rope_scaling`: the same file says the same model, here and in transformers."""
    folder, theirs = saved(case)
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope[key] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope[key] == "default" else rope
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert np.array_equal(their_logits(tmp_path, TOKENS), theirs)
    assert row_error(all_logits(load_model(tmp_path, backend="numpy"), TOKENS), theirs) <= TOLERANCE


def test_tensors_are_made_when_they_are_asked_for(saved: Saved) -> None:
    """Float32 is handed out as a view of the file; of bfloat16 one converted matrix is alive, not all of them."""
    plain = load_checkpoint(saved("llama")[0]).tensors
    assert isinstance(plain, LazyTensors)
    for name in plain:
        tensor = plain[name]
        assert isinstance(tensor, np.ndarray) and not tensor.flags.owndata and not tensor.flags.writeable
    brain = load_checkpoint(saved("bfloat16")[0]).tensors
    assert brain[HEAD] is not brain[HEAD] and HEAD in brain and "nonesuch" not in brain
    with pytest.raises(KeyError):
        brain["nonesuch"]
