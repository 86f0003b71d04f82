"""Names and paths; the lab model; what validation asks of any loader."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labcore.core.config import ModelConfig
from labcore.core.errors import FetchFailed, InvalidCheckpoint
from labcore.loaders.checkpoint import Checkpoint, LazyTensors, required_tensors, validate
from labcore.loaders.lab import lab_checkpoint
from labcore.loaders.load import load_checkpoint

WriteGGUF = WriteFolder = Callable[..., Path]


def test_lab_has_the_same_bits_everywhere() -> None:
    """The sum over all tensors. If it changes, every stored output of the book changes with it."""
    digest = hashlib.sha256()
    for _, tensor in sorted(load_checkpoint("lab").tensors.items()):
        assert isinstance(tensor, np.ndarray) and tensor.dtype == np.float32
        digest.update(tensor.astype("<f4").tobytes())
    assert digest.hexdigest() == "809e1e4fcc0fbe61413c2926d4a5f02a48fcbef8461957ba1382ff3ab964d276"


def test_lab_is_tied_and_complete() -> None:
    checkpoint = lab_checkpoint()
    assert checkpoint.tied and checkpoint.config == ModelConfig.lab()
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == required_tensors(ModelConfig.lab())
    assert checkpoint.tokenizer.vocab_size == checkpoint.config.vocab_size == 1024


def dense(name: str, seed: int = 0) -> np.ndarray:
    tensor = lab_checkpoint(seed).tensors[name]
    assert isinstance(tensor, np.ndarray)
    return tensor


def test_seeds_and_tensors_have_streams_of_their_own() -> None:
    q, other = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"
    assert not np.array_equal(dense(q), dense(q, seed=1)) and not np.array_equal(dense(q), dense(other))


def test_weights_have_the_stated_spread() -> None:
    assert np.std(dense("model.embed_tokens.weight")) == pytest.approx(0.2, rel=0.01)
    assert np.std(dense("model.layers.2.mlp.down_proj.weight")) == pytest.approx(3 / 768**0.5, rel=0.01)
    assert np.mean(dense("model.norm.weight")) == pytest.approx(1.0, abs=0.03)


def test_a_path(write_gguf: WriteGGUF) -> None:
    path = write_gguf()
    assert load_checkpoint(path).config.name == load_checkpoint(str(path)).config.name == "small"


def test_a_folder_and_the_weights_in_it(write_folder: WriteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for shards, weights in ((0, "model.safetensors"), (2, "model.safetensors.index.json")):
        folder = write_folder(shards=shards)
        for path in (folder, str(folder), f"{folder}{os.sep}", folder / weights, str(folder / weights)):
            assert load_checkpoint(path).config.name == "tiny"
        (folder / weights).unlink()
    monkeypatch.chdir(write_folder())
    assert load_checkpoint("model.safetensors").config.name == load_checkpoint(".").config.name == "tiny"


def test_a_file_that_is_not_all_of_the_weights(write_folder: WriteFolder) -> None:
    folder = write_folder(shards=2)
    with pytest.raises(InvalidCheckpoint, match=r"part-1.safetensors: is not all of .* which are model.safetensors.index.json"):
        load_checkpoint(folder / "part-1.safetensors")
    (folder / "part-0.safetensors").rename(folder / "model.safetensors")
    for name in ("model.safetensors", "model.safetensors.index.json"):
        with pytest.raises(InvalidCheckpoint, match=r"has model.safetensors and model.safetensors.index.json; expected one of"):
            load_checkpoint(folder / name)


@pytest.mark.parametrize("name", ["nonesuch", "", "nowhere/model.gguf", "nowhere/model.safetensors", "long" * 2000, "nul\0"])
def test_neither_a_name_nor_a_file(name: str) -> None:
    says = "neither a model nor a file; expected lab, lab-moe, smollm2, a Hugging Face folder or a GGUF file"
    with pytest.raises(InvalidCheckpoint, match=says):
        load_checkpoint(name)


def test_a_folder_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"config.json: cannot be read: no such file"):
        load_checkpoint(tmp_path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(InvalidCheckpoint, match="begins with b'hell', expected b'GGUF'"):
        load_checkpoint(path)


def test_a_named_model_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCORE_CACHE", str(tmp_path / "empty"))
    with pytest.raises(FetchFailed, match=r"smollm2 is not in the cache .*; run `labcore fetch smollm2`"):
        load_checkpoint("smollm2")


def changed(**tensors: np.ndarray | None) -> Checkpoint:
    checkpoint = lab_checkpoint()
    kept = dict(checkpoint.tensors) | {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return replace(checkpoint, tensors={name: tensor for name, tensor in kept.items() if tensors.get(name, tensor) is not None})


def test_validate_makes_no_tensor() -> None:
    """Shapes are known from the header; what is of a wrong shape is never converted."""
    shapes = dict(lab_checkpoint().shapes)

    def make(name: str) -> np.ndarray:
        raise AssertionError(f"{name} was made")

    lazy = replace(lab_checkpoint(), tensors=LazyTensors(shapes, make))
    assert validate(lazy, "here").tied and lazy.shapes == required_tensors(ModelConfig.lab())
    shapes["model.norm.weight"] = (257,)
    with pytest.raises(InvalidCheckpoint, match=r"here: tensor model.norm.weight has shape \(257,\); expected \(256,\)"):
        validate(lazy, "here")


def test_validate_names_the_tensor() -> None:
    assert validate(changed(), "here").tied
    head = np.zeros((1024, 256), np.float32)
    assert not validate(changed(**{"lm_head.weight": head}), "here").tied
    with pytest.raises(InvalidCheckpoint, match=r"here: tensor lm_head.weight has shape \(1024, 255\); expected \(1024, 256\)"):
        validate(changed(**{"lm_head.weight": head[:, 1:]}), "here")
    with pytest.raises(InvalidCheckpoint, match=r"layers.3.mlp.gate_proj.weight is missing; expected one of shape \(768, 256\)"):
        validate(changed(**{"model.layers.3.mlp.gate_proj.weight": None}), "here")
    with pytest.raises(InvalidCheckpoint, match="tensor 'extra' has no place"):
        validate(changed(extra=head), "here")
