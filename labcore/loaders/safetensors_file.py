"""The safetensors file format: tensors out of memory-mapped files, each converted when it is asked for.

    header   length u64, JSON: name -> {"dtype", "shape", "data_offsets": [begin, end]} into the data
    data     to the end of the file, without holes

A model is one file, or several shards and an index that says which shard holds which tensor. The `safetensors`
library checks a header: lengths, offsets, sizes. Here it is read once more for where the tensors lie, because the library
copies what it hands out and numpy has no bfloat16.

All is checked before the first tensor is handed out: a shard has exactly the tensors that the index promises of it,
and only such types as convert to float32 without loss, or int8, whose scales the caller knows. The files must stay as they
are while they are mapped.
Source: the format's description in the `safetensors` repository.

    >>> tensors = read_safetensors(Path("model.safetensors"))
    >>> tensors["model.norm.weight"].load().dtype
    dtype('float32')
"""

from __future__ import annotations

import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.dense import STORED, decode
from labcore.loaders.fields import MAX_JSON_BYTES, json_object, read_json

SHARD_NAME = re.compile(r"[^/\\:\x00-\x1f]+\.safetensors")  # a file beside the index, on any system
COMPARED_BYTES = 1 << 24  # at a time
TYPES = STORED | {"I8": np.dtype(np.int8)}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: `start` in the mapped file `raw`."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    raw: mmap.mmap

    def load(self) -> np.ndarray:
        """The tensor in float32: F32 as a read-only view, F16 and BF16 converted, exactly. I8 is a view, and stays int8."""
        stored = np.ndarray(self.shape, TYPES[self.dtype], self.raw, self.start)
        return stored if self.dtype == "I8" else decode(stored, self.dtype)

    def same_bits(self, other: StoredTensor) -> bool:
        """Whether type, shape and every bit are equal."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        mine, theirs = (np.frombuffer(t.raw, np.uint8)[t.start : t.start + t.nbytes] for t in (self, other))
        parts = (slice(at, at + COMPARED_BYTES) for at in range(0, self.nbytes, COMPARED_BYTES))
        return all(np.array_equal(mine[part], theirs[part]) for part in parts)


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """All tensors of one file, or of the shards that an index (`*.json`) names. InvalidCheckpoint says what is wrong."""
    return _read_shards(path) if path.suffix == ".json" else _read_file(path)


def _read_file(path: Path) -> dict[str, StoredTensor]:
    try:
        if not os.path.isfile(path):
            raise FileNotFoundError("no such file")
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not length <= min(MAX_JSON_BYTES, os.path.getsize(path)):
                raise ValueError(f"its header has {length} bytes; expected at most {MAX_JSON_BYTES}, and within the file")
            with safe_open(path, framework="np"):
                pass  # which checks it
            raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError, SafetensorError) as error:
        reason = " ".join(str(error).split())  # it may quote the file, line breaks and all
        raise InvalidCheckpoint(f"{path}: cannot be read: {reason:.200}") from None
    data = 8 + int.from_bytes(raw[:8], "little")
    header = json_object(raw[8:data], f"{path}: header")
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in TYPES:
            raise InvalidCheckpoint(f"{path}: tensor {name!r:.80} has type {entry['dtype']}; supported: {', '.join(TYPES)}")
        begin, end = entry["data_offsets"]
        tensors[name] = StoredTensor(entry["dtype"], tuple(entry["shape"]), data + begin, end - begin, raw)
    return tensors


def _read_shards(index: Path) -> dict[str, StoredTensor]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise InvalidCheckpoint(f"{index}: weight_map is {places!r:.60}; expected an object of tensor names and file names")
    for name, shard in places.items():
        if not isinstance(shard, str) or not SHARD_NAME.fullmatch(shard):
            raise InvalidCheckpoint(
                f"{index}: tensor {name!r:.80} is in {shard!r:.80}; expected the name of a .safetensors file in the same folder"
            )
    tensors: dict[str, StoredTensor] = {}
    for shard in dict.fromkeys(places.values()):
        if not os.path.isfile(index.with_name(shard)):
            raise InvalidCheckpoint(f"{index}: file {shard!r:.80} is missing")
        for name, tensor in _read_file(index.with_name(shard)).items():
            if places.get(name) != shard:
                raise InvalidCheckpoint(f"{index}: {shard} has tensor {name!r:.80}, which should be in {places.get(name)!r:.80}")
            tensors[name] = tensor
    for name, shard in places.items():
        if name not in tensors:
            raise InvalidCheckpoint(f"{index}: tensor {name!r:.80} is not in {shard}, where it should be")
    return tensors
