"""Our reader sees what gguf's own reader sees: in a file of every type, and in the whole of the real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from labcore.loaders import zoo
from labcore.loaders.gguf import GGUFFile, read_gguf
from labcore.quant.quantized_tensor import QuantizedTensor


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def assert_same(ours: GGUFFile, theirs: gguf.GGUFReader) -> None:
    known = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata.keys() == known.keys()
    for key, field in known.items():
        expected = [bool(x) for x in field.contents()] if field.types[1:] == [gguf.GGUFValueType.BOOL] else field.contents()
        assert plain(ours.metadata[key]) == expected, key
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.type == tensor.tensor_type.name
        assert info.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert (info.start, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
        taken = ours.tensor(tensor.name)
        if isinstance(taken, QuantizedTensor):
            assert np.array_equal(taken.data, tensor.data)
        else:
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert taken.dtype == np.float32 and taken.shape == info.shape
            assert np.array_equal(taken.view(np.uint32).ravel(), expected.view(np.uint32).ravel())


@pytest.fixture
def every_type(tmp_path: Path) -> Path:
    path = tmp_path / "every.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for bits in (8, 16, 32, 64):
        getattr(writer, f"add_uint{bits}")(f"u{bits}", 2**bits - 1)
        getattr(writer, f"add_int{bits}")(f"i{bits}", -(2 ** (bits - 1)))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "naïve\x00 ﷽ 👩‍👩‍👧")
    writer.add_string("empty", "")
    writer.add_array("strings", ["", "a", "β"])
    writer.add_array("ints", [-1, 0, 2**31 - 1])
    writer.add_array("floats", [0.5, -0.25])
    writer.add_array("bools", [True, False, True])
    draw = np.random.default_rng(0)
    for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"):
        weights = draw.standard_normal((6, 64)).astype(np.float32)
        stored = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(f"matrix.{kind}", stored, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.add_tensor("vector", draw.standard_normal(5).astype(np.float32))
    writer.add_tensor("cube", draw.standard_normal((2, 3, 4, 5)).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_type(every_type: Path) -> None:
    assert_same(read_gguf(every_type), gguf.GGUFReader(every_type))


def test_f16_and_bf16_are_converted_exactly(tmp_path: Path) -> None:
    """All 65,536 patterns of each."""
    patterns = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    writer = gguf.GGUFWriter(tmp_path / "halves.gguf", "llama")
    writer.add_tensor("F16", patterns.view(np.float16))
    writer.add_tensor("BF16", patterns.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "halves.gguf")
    half, brain = file.tensor("F16"), file.tensor("BF16")
    assert isinstance(half, np.ndarray) and isinstance(brain, np.ndarray)
    assert np.array_equal(half, patterns.view(np.float16).astype(np.float32), equal_nan=True)
    assert np.array_equal(brain.view(np.uint32), patterns.astype(np.uint32) << 16)


@pytest.mark.parametrize("alignment", [1, 2, 8, 64, 4096])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    """Even an alignment that leaves float32 unaligned in the file gives aligned arrays."""
    writer = gguf.GGUFWriter(tmp_path / "aligned.gguf", "llama")
    writer.data_alignment = alignment
    writer.add_uint32("general.alignment", alignment)
    writer.add_tensor("half", np.arange(5, dtype=np.float16))
    writer.add_tensor("single", np.arange(7, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    single = read_gguf(tmp_path / "aligned.gguf").tensor("single")
    assert isinstance(single, np.ndarray)
    assert single.tolist() == list(range(7)) and single.flags.aligned


def test_the_real_model(smollm2_gguf_reader: gguf.GGUFReader) -> None:
    assert_same(read_gguf(zoo.model_path("smollm2")), smollm2_gguf_reader)


def test_views_of_the_file_are_read_only_and_outlive_it() -> None:
    tensor = read_gguf(zoo.model_path("smollm2")).tensor("token_embd.weight")  # the GGUFFile itself is gone by now
    assert isinstance(tensor, QuantizedTensor)
    assert not tensor.data.flags.writeable and not tensor.data.flags.owndata
    assert tensor.data[:2].sum() > 0
