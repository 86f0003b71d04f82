"""Tensors out of safetensors: what the library reads, bit for bit; shards and their index; what is refused by name."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders import safetensors_file
from labcore.loaders.fields import MAX_JSON_BYTES
from labcore.loaders.safetensors_file import read_safetensors


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> Path:
    """A file by hand, sound or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def test_every_type_and_shape(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = ((), (1,), (5,), (3, 7), (2, 3, 4, 5))
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    written = {
        f"{kind} {shape}": torch.randn(shape, generator=draw).to(dtype) for kind, dtype in types.items() for shape in shapes
    }
    save_file(written, tmp_path / "every.safetensors", metadata={"format": "pt"})
    ours, theirs = read_safetensors(tmp_path / "every.safetensors"), load_file(tmp_path / "every.safetensors")
    assert ours.keys() == theirs.keys() == written.keys()
    for name, tensor in ours.items():
        loaded = tensor.load()
        assert loaded.dtype == np.float32 and loaded.shape == tensor.shape == tuple(theirs[name].shape)
        assert np.array_equal(loaded, theirs[name].float().numpy())
        assert tensor.dtype in name and tensor.nbytes == theirs[name].nbytes


def test_float32_is_a_view_that_outlives_its_file(tmp_path: Path) -> None:
    save_file({"a": torch.arange(4.0)}, tmp_path / "a.safetensors")
    array = read_safetensors(tmp_path / "a.safetensors")["a"].load()
    (tmp_path / "a.safetensors").unlink()
    assert array.tolist() == [0, 1, 2, 3] and not array.flags.owndata and not array.flags.writeable


@pytest.mark.parametrize("padding", range(4))
def test_data_that_lie_unaligned(tmp_path: Path, padding: int) -> None:
    header = json.dumps({"a": entry("F32", [3], 0, 12)}).encode() + b" " * padding
    array = read_safetensors(write(tmp_path / "a.safetensors", header, struct.pack("<3f", 1, 2, 3)))["a"].load()
    assert array.tolist() == [1, 2, 3] and array.flags.aligned


def test_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "COMPARED_BYTES", 8)
    values = torch.tensor([1.0, float("nan"), 0.0, 4.0, 5.0])
    last, sign = values.clone(), values.clone()
    last[4], sign[2] = 6, -0.0
    written = {
        "values": values, "copy": values.clone(), "last": last, "sign": sign, "half": values.half(),
        "column": values.clone()[:, None],
    }  # fmt: skip
    save_file(written, tmp_path / "a.safetensors")
    tensors = read_safetensors(tmp_path / "a.safetensors")
    assert [name for name, tensor in tensors.items() if tensor.same_bits(tensors["values"])] == ["copy", "values"]


FILES: dict[str, tuple[dict[str, Any] | bytes, bytes, int | None]] = {
    "tensor 'a' has type F64; supported: F32, F16, BF16": ({"a": entry("F64", [1], 0, 8)}, bytes(8), None),
    "tensor 'a' has type I16": ({"a": entry("I16", [4], 0, 8)}, bytes(8), None),
    "tensor 'a' has type U8": ({"a": entry("U8", [4], 0, 4)}, bytes(4), None),
    "tensor 'a' has type F8_E4M3": ({"a": entry("F8_E4M3", [4], 0, 4)}, bytes(4), None),
    "tensor 'a' has type F4": ({"a": entry("F4", [4], 0, 2)}, bytes(2), None),
    "unknown variant `Q4`": ({"a": entry("Q4", [4], 0, 2)}, bytes(2), None),
    "cannot be read: its header has 1000 bytes": ({"a": entry("F32", [1], 0, 4)}, bytes(4), 1000),
    "cannot be read: its header has 9223372036854775808 bytes": ({"a": entry("F32", [1], 0, 4)}, bytes(4), 2**63),
    "cannot be read: .* not fully covered": ({"a": entry("F32", [1], 0, 4)}, bytes(5), None),
    "invalid offset": ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, bytes(4), None),
    "invalid offset for tensor `a`": ({"a": entry("F32", [1], 4, 8)}, bytes(8), None),
    "cannot be read: .* invalid shape": ({"a": entry("F32", [2], 0, 4)}, bytes(4), None),
    "cannot be read: .* overflow": ({"a": entry("F32", [2**62, 2**62], 0, 4)}, bytes(4), None),
    "cannot be read: .* expected usize": (b'{"a":{"dtype":"F32","shape":[1e30],"data_offsets":[0,4]}}', bytes(4), None),
    "cannot be read: .* recursion limit": (b'{"a":' + b"[" * 5000, b"", None),
    "cannot be read: .* UTF-8": (b'{"\xff":{}}', b"", None),
    "cannot be read: .* expected struct": (b"[]", b"", None),
    "header: not JSON that can be used: key 'a' occurs 2 times": (
        b'{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}',
        bytes(2), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("says", FILES)
def test_a_file_that_is_refused(tmp_path: Path, says: str) -> None:
    path = write(tmp_path / "a.safetensors", *FILES[says])
    with pytest.raises(InvalidCheckpoint, match=says) as caught:
        read_safetensors(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_header_of_a_million_empty_tensors_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write((MAX_JSON_BYTES + 1).to_bytes(8, "little"))
        file.truncate(MAX_JSON_BYTES + 100)
    with pytest.raises(InvalidCheckpoint, match=f"its header has {MAX_JSON_BYTES + 1} bytes; expected at most {MAX_JSON_BYTES}"):
        read_safetensors(path)


@pytest.mark.parametrize("name", ["nowhere.safetensors", ".", "nul\0.safetensors", "long" * 2000, "pipe", "empty"])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidCheckpoint, match="cannot be read"):
        read_safetensors(tmp_path / name)


def model(folder: Path, **shards: list[str]) -> Path:
    """Shards of one-number tensors, and a sound index."""
    for shard, names in shards.items():
        save_file({name: torch.ones(1) for name in names}, folder / f"{shard}.safetensors")
    return index(folder, {name: f"{shard}.safetensors" for shard, names in shards.items() for name in names})


def index(folder: Path, weight_map: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 8}, "weight_map": weight_map}))
    return path


def test_shards(tmp_path: Path) -> None:
    found = read_safetensors(model(tmp_path, one=["b", "a"], two=["c"]))
    assert sorted(found) == ["a", "b", "c"] and found["c"].load().tolist() == [1]


def test_a_shard_may_be_a_link(tmp_path: Path) -> None:
    """As in the cache of the Hub: names beside the index, contents elsewhere."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    path = model(tmp_path / "snapshot", one=["a"])
    (tmp_path / "snapshot" / "one.safetensors").rename(tmp_path / "blobs" / "0123")
    (tmp_path / "snapshot" / "one.safetensors").symlink_to("../blobs/0123")
    assert list(read_safetensors(path)) == ["a"]
    (tmp_path / "blobs" / "0123").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"index.json: file 'one.safetensors' is missing"):
        read_safetensors(path)


ONE = "one.safetensors"
INDEXES: dict[str, Any] = {
    "file 'gone.safetensors' is missing": {"a": ONE, "b": ONE, "c": "gone.safetensors"},
    "tensor 'c' is not in one.safetensors, where it should be": {"a": ONE, "b": ONE, "c": ONE},
    "one.safetensors has tensor 'b', which should be in None": {"a": ONE},
    "one.safetensors has tensor 'b', which should be in 'two.safetensors'": {"a": ONE, "b": "two.safetensors"},
    "two.safetensors has tensor 'b', which should be in 'one.safetensors'": {"a": ONE, "b": ONE, "d": "two.safetensors"},
    "weight_map is None": None,
    r"weight_map is \[\]": [],
    r"weight_map is \{\}": {},
    "weight_map is 'one.safetensors'": ONE,
    "tensor 'a' is in 3; expected the name": {"a": 3},
    "tensor 'a' is in None": {"a": None},
    r"tensor 'a' is in \['one": {"a": [ONE]},
} | {
    f"expected the name of a .safetensors file in the same folder{i}": {"a": name}
    for i, name in enumerate(
        ["../one.safetensors", "/etc/one.safetensors", "sub/one.safetensors", "./one.safetensors", "", ".", "..", "one.bin",
         "one\0.safetensors", "..\\one.safetensors", "C:one.safetensors", ".safetensors", "one.safetensors/", "one.safetensors\n"]
    )
}  # fmt: skip


@pytest.mark.parametrize("says", INDEXES)
def test_an_index_that_is_refused(tmp_path: Path, says: str) -> None:
    model(tmp_path, one=["a", "b"], two=["d", "b"])
    (tmp_path / "sub").mkdir()
    model(tmp_path / "sub", one=["a"])
    path = index(tmp_path, INDEXES[says])
    with pytest.raises(InvalidCheckpoint, match=says.rstrip("0123456789")) as caught:
        read_safetensors(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON that can be used"),
        ("[]", "holds a list; expected a JSON object"),
        ("3", "holds a int"),
        ("\ufeff{}", "not JSON that can be used"),
        ("[" * 100_000, "not JSON that can be used"),
        ('{"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}}', "key 'a' occurs 2 times"),
        ('{"weight_map": NaN}', "NaN is not a number of JSON"),
        ('{"weight_map": ' + "9" * 5000 + "}", "not JSON that can be used"),
    ],
)
def test_an_index_that_is_no_object(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(InvalidCheckpoint, match=says):
        read_safetensors(path)


def test_an_index_that_is_no_text_too_large_or_no_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(InvalidCheckpoint, match="not JSON that can be used: 'utf-8'"):
        read_safetensors(path)
    os.truncate(path, 17 << 20)
    with pytest.raises(InvalidCheckpoint, match="has 17825792 bytes; expected at most 16777216"):
        read_safetensors(path)
    path.unlink()
    with pytest.raises(InvalidCheckpoint, match="cannot be read: no such file"):
        read_safetensors(path)
