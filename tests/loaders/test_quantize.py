"""Quantized files: what is read back is what quantizing in memory gives; gguf and transformers read the same numbers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hugging_face import save_model
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from labcore.core.errors import InvalidCheckpoint
from labcore.lab.equivalence import all_logits
from labcore.loaders.checkpoint import EMBEDDING, HEAD, Checkpoint
from labcore.loaders.gguf_writer import write_gguf
from labcore.loaders.lab import lab_checkpoint
from labcore.loaders.llama_gguf import ggml_name
from labcore.loaders.load import load_checkpoint
from labcore.loaders.safetensors_writer import write_safetensors
from labcore.loaders.writing import float32
from labcore.model.weights import load_model
from labcore.quant.error import logit_error
from labcore.quant.int8 import INT8_METHOD, Int8Tensor, quantize_int8
from labcore.quant.quantize import quantize
from labcore.quant.quantized_tensor import QuantizedTensor

FILE_TYPES = {"Q8_0": 7, "Q4_0": 2, "Q4_1": 3}  # ggml's llama_ftype
FORMATS = list(FILE_TYPES)


@pytest.fixture(scope="module", params=["lab", "llama", "llama untied", "qwen2", "qwen3"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The lab model, and tiny ones that transformers saved."""
    folder = tmp_path_factory.mktemp("source") / "tiny"
    match request.param:
        case "lab":
            return lab_checkpoint()
        case "llama":
            save_model(folder, "Llama", tie_word_embeddings=True)
        case "llama untied":
            save_model(folder, "Llama", tie_word_embeddings=False, attention_bias=True)
        case "qwen2":
            save_model(folder, "Qwen2")
        case "qwen3":
            save_model(folder, "Qwen3", head_dim=32)
    return load_checkpoint(folder)


def formats_of(checkpoint: Checkpoint, format: str) -> dict[str, str]:
    """The rule, said once more: matrices as asked for, embedding and head in Q8_0, the rest in float32."""
    matrices = {name: "Q8_0" if name in (EMBEDDING, HEAD) else format for name, s in checkpoint.shapes.items() if len(s) == 2}
    return dict.fromkeys(checkpoint.shapes, "F32") | matrices


@pytest.mark.parametrize("format", FORMATS)
def test_a_gguf_holds_what_quantizing_in_memory_gives(source: Checkpoint, format: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(source, path, format)
    back = load_checkpoint(path)
    assert back.shapes.keys() == source.shapes.keys()
    assert (back.config.hidden_size, back.config.biases, back.tied) == (
        source.config.hidden_size,
        source.config.biases,
        source.tied,
    )
    for name, kind in formats_of(source, format).items():
        tensor, want = back.tensors[name], float32(source.tensors[name])
        if kind == "F32":
            assert isinstance(tensor, np.ndarray) and np.array_equal(tensor, want), name
        else:
            assert isinstance(tensor, QuantizedTensor) and tensor.format == kind, name
            assert np.array_equal(tensor.data, quantize(kind, want).data), name


@pytest.mark.parametrize("format", FORMATS)
def test_gguf_s_reader_and_dequantizer_agree(source: Checkpoint, format: str, tmp_path: Path) -> None:
    write_gguf(source, tmp_path / "tiny.gguf", format)
    reader, back = gguf.GGUFReader(tmp_path / "tiny.gguf"), load_checkpoint(tmp_path / "tiny.gguf")
    assert reader.get_field("general.file_type").contents() == FILE_TYPES[format]
    assert reader.get_field("general.quantization_version").contents() == gguf.GGML_QUANT_VERSION
    theirs = {tensor.name: tensor for tensor in reader.tensors}
    llama = reader.get_field("general.architecture").contents() == "llama"
    for name, kind in formats_of(source, format).items():
        tensor = theirs[ggml_name(name)]
        assert tensor.tensor_type.name == kind
        ours, expanded = float32(back.tensors[name]), gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if llama and name.split(".")[-2] in ("q_proj", "k_proj"):  # ggml's order of rows: neighbours are rotated
            ours, expanded = np.sort(ours, axis=0), np.sort(expanded, axis=0)
        assert np.array_equal(ours, expanded), name


@pytest.mark.parametrize("format", FORMATS)
def test_transformers_loads_the_gguf_and_computes_the_same(format: str, tmp_path: Path) -> None:
    """The same weights, expanded there and here: what is left is the rounding of float32."""
    source = load_checkpoint(save_model(tmp_path / "tiny", "Llama", tie_word_embeddings=True))
    write_gguf(source, tmp_path / "tiny.gguf", format)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32).eval()
    ids = np.random.default_rng(0).integers(0, 256, 40).tolist()
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    got = all_logits(load_model(tmp_path / "tiny.gguf", weights="f32", backend="numpy"), ids)
    assert np.abs(got - expected).max() < 2e-5 * np.abs(expected).max()
    exact = all_logits(load_model(source, backend="numpy"), ids)
    assert np.abs(exact - expected).max() > 1e-3 * np.abs(expected).max()  # or nothing was quantized


def test_an_int8_folder_holds_what_quantizing_in_memory_gives(source: Checkpoint, tmp_path: Path) -> None:
    for shard_bytes in (5_000_000_000, 40_000):
        folder = tmp_path / f"int8-{shard_bytes}"
        write_safetensors(source, folder, "I8", max_shard_bytes=shard_bytes)
        assert (len(list(folder.glob("*.safetensors"))) > 1) == (shard_bytes < 1e9)
        back = load_checkpoint(folder)
        assert back.shapes == source.shapes and dataclasses.replace(back.config, name="") == dataclasses.replace(
            source.config, name=""
        )
        for name, shape in source.shapes.items():
            tensor, want = back.tensors[name], float32(source.tensors[name])
            if len(shape) == 1:
                assert isinstance(tensor, np.ndarray) and np.array_equal(tensor, want), name
            else:
                int8 = quantize_int8(want)
                assert isinstance(tensor, Int8Tensor) and tensor.shape == shape, name
                assert np.array_equal(tensor.data, int8.data) and np.array_equal(tensor.scales, int8.scales), name


def test_the_safetensors_library_reads_the_int8_folder(tmp_path: Path) -> None:
    lab = lab_checkpoint()
    write_safetensors(lab, tmp_path / "lab", "I8")
    theirs, ours = load_file(tmp_path / "lab" / "model.safetensors"), load_checkpoint(tmp_path / "lab").tensors
    for name, tensor in ours.items():
        if isinstance(tensor, Int8Tensor):
            assert np.array_equal(theirs.pop(name), tensor.data) and np.array_equal(theirs.pop(f"{name}.scales"), tensor.scales)
        else:
            assert np.array_equal(theirs.pop(name), tensor)
    assert not theirs
    config = json.loads((tmp_path / "lab" / "config.json").read_text())
    assert config["quantization_config"] == INT8_METHOD


def test_a_quantized_file_is_written_again_as_it_is(tmp_path: Path) -> None:
    """Nothing is rounded twice: blocks stay blocks, int8 stays int8, and each converts to float32 without loss."""
    lab = lab_checkpoint()
    write_gguf(lab, tmp_path / "lab.gguf", "Q4_1")
    write_safetensors(lab, tmp_path / "lab", "I8")
    (tmp_path / "again").mkdir()
    write_gguf(load_checkpoint(tmp_path / "lab.gguf"), tmp_path / "again" / "lab.gguf", "Q4_1")
    write_safetensors(load_checkpoint(tmp_path / "lab"), tmp_path / "again" / "lab", "I8")
    assert (tmp_path / "lab.gguf").read_bytes() == (tmp_path / "again" / "lab.gguf").read_bytes()
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "lab" / file).read_bytes() == (tmp_path / "again" / "lab" / file).read_bytes()
    for path, write, name in ((tmp_path / "lab", write_gguf, "f32.gguf"), (tmp_path / "lab.gguf", write_safetensors, "f32")):
        write(load_checkpoint(path), tmp_path / name)  # type: ignore[operator]
        wide, narrow = load_checkpoint(tmp_path / name).tensors, load_checkpoint(path).tensors
        assert all(np.array_equal(wide[key], float32(narrow[key])) for key in narrow)


@pytest.mark.parametrize("format", [*FORMATS, "I8"])
def test_a_quantized_model_answers_nearly_as_before(format: str, tmp_path: Path) -> None:
    lab, out = lab_checkpoint(), tmp_path / "lab.gguf"
    (write_safetensors if format == "I8" else write_gguf)(lab, out, format)
    ids = list(range(40, 90))
    exact = all_logits(load_model(lab, backend="numpy"), ids)
    error = logit_error(exact, all_logits(load_model(out, backend="numpy"), ids))
    assert 0 < error.mean_kl < (0.05 if format in ("I8", "Q8_0") else 5)


def tensors_with(folder: Path, changed: dict[str, np.ndarray | None]) -> None:
    tensors: dict[str, Any] = load_file(folder / "model.safetensors") | changed
    save_file({name: array for name, array in tensors.items() if array is not None}, folder / "model.safetensors")


KEY = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({f"{KEY}.scales": None}, f"int8 tensor '{KEY}' has no scales"),
        ({KEY: None}, f"has scales, but no int8 matrix '{KEY}'"),
        ({KEY: np.zeros((64, 256), np.float32)}, f"has scales, but no int8 matrix '{KEY}'"),
        ({f"{KEY}.scales": np.zeros(63, np.float32)}, r"of shape \(64, 256\) has scales F32 \(63,\)"),
        ({f"{KEY}.scales": np.zeros(64, np.float16)}, r"has scales F16 \(64,\)"),
        ({KEY: np.zeros((64, 255), np.int8)}, r"has shape \(64, 255\); expected \(64, 256\)"),
        ({KEY: np.zeros((64, 256), np.int16)}, "has type I16; supported: F32, F16, BF16, I8"),
    ],
)
def test_a_damaged_int8_folder_is_refused(changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    write_safetensors(lab_checkpoint(), tmp_path / "lab", "I8")
    tensors_with(tmp_path / "lab", changed)
    with pytest.raises(InvalidCheckpoint, match=says):
        load_checkpoint(tmp_path / "lab")


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (None, "int8 tensor '.*' has no scales; expected a quantization_config"),
        ({"quant_method": "gptq", "bits": 8}, "quantization_config is .*gptq.*; supported: .* by labcore_int8"),
        (INT8_METHOD | {"bits": 4}, "quantization_config is "),
    ],
)
def test_an_int8_folder_must_say_its_method(method: dict[str, Any] | None, says: str, tmp_path: Path) -> None:
    write_safetensors(lab_checkpoint(), tmp_path / "lab", "I8")
    path = tmp_path / "lab" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": method, "model_type": "llama"}))
    with pytest.raises(InvalidCheckpoint, match=says):
        load_checkpoint(tmp_path / "lab")


def test_a_tied_head_that_repeats_the_embedding_is_held_against_its_scales_too(tmp_path: Path) -> None:
    write_safetensors(lab_checkpoint(), tmp_path / "lab", "I8")
    stored = load_file(tmp_path / "lab" / "model.safetensors")
    head, scales = stored[EMBEDDING], stored[f"{EMBEDDING}.scales"]
    tensors_with(tmp_path / "lab", {HEAD: head, f"{HEAD}.scales": scales})
    assert load_checkpoint(tmp_path / "lab").tied
    tensors_with(tmp_path / "lab", {HEAD: head, f"{HEAD}.scales": scales * 2})
    with pytest.raises(InvalidCheckpoint, match=r"lm_head\.weight differs from"):
        load_checkpoint(tmp_path / "lab")


def test_what_others_do_with_int8(tmp_path: Path) -> None:
    """transformers would skip a method that it does not know, and take the integers for weights: so it is refused a name."""
    folder = tmp_path / "tiny"
    write_safetensors(load_checkpoint(save_model(tmp_path / "source", "Llama")), folder, "I8")
    with pytest.raises(ValueError, match="model type `labcore_int8_llama`"):
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def lab_with(**tensors: np.ndarray) -> Checkpoint:
    lab = lab_checkpoint()
    return dataclasses.replace(lab, tensors={**lab.tensors, **tensors})


@pytest.mark.parametrize(("write", "format"), [(write_gguf, "Q8_0"), (write_gguf, "Q4_1"), (write_safetensors, "I8")])
def test_a_weight_that_is_no_number_is_named_and_nothing_stays(write: Any, format: str, tmp_path: Path) -> None:
    broken = np.ones((64, 256), np.float32)
    broken[7, 3] = np.nan
    with pytest.raises(InvalidCheckpoint, match=f"^{KEY}: row ([0-9]+) holds a NaN"):
        write(lab_with(**{KEY: broken}), tmp_path / "out", format)
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_no_whole_blocks_stay_float32(tmp_path: Path) -> None:
    source = load_checkpoint(save_model(tmp_path / "tiny", "Llama", intermediate_size=100))
    write_gguf(source, tmp_path / "tiny.gguf", "Q8_0")
    tensors = load_checkpoint(tmp_path / "tiny.gguf").tensors
    assert isinstance(tensors["model.layers.0.mlp.down_proj.weight"], np.ndarray)
    assert isinstance(tensors["model.layers.0.mlp.up_proj.weight"], QuantizedTensor)
    narrow = {"hidden_size": 48, "head_dim": 4, "intermediate_size": 40}
    source = load_checkpoint(save_model(tmp_path / "narrow", "Llama", **narrow))
    with pytest.raises(InvalidCheckpoint, match="narrow: rows of 48 are no whole blocks of Q4_1"):
        write_gguf(source, tmp_path / "narrow.gguf", "Q4_1")
    write_safetensors(source, tmp_path / "int8", "I8")
    assert isinstance(load_checkpoint(tmp_path / "int8").tensors[EMBEDDING], Int8Tensor)
