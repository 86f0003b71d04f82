"""A damaged file raises InvalidCheckpoint: it never crashes, hangs, or takes memory that the file's size does not justify."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from damage import load_all, loads

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.gguf import read_gguf

WriteGGUF = Callable[..., Path]


@pytest.fixture
def whole(write_gguf: WriteGGUF) -> bytes:
    more = {"rope_freqs.weight": np.ones(4, np.float32), "blk.0.attn_q.bias": np.ones(32, np.float32)}
    path = write_gguf(changed=more, metadata={"llama.rope.scaling.original_context_length": 8192})
    assert loads(path)
    return path.read_bytes()


def test_every_truncation(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole)
    for length in reversed(range(len(whole))):
        os.truncate(path, length)
        assert not loads(path), length


def test_random_flips(whole: bytes, tmp_path: Path) -> None:
    """A few bytes changed anywhere; half of the time in the part that is not weights."""
    draw = random.Random(1)
    header = read_header_size(tmp_path, whole)

    def damaged() -> Iterator[bytes]:
        for _ in range(2500):
            data = bytearray(whole)
            for _ in range(draw.choice((1, 1, 2, 8))):
                data[draw.randrange(draw.choice((header, len(data))))] ^= 1 << draw.randrange(8)
            yield bytes(data)

    outcomes = load_all(tmp_path / "flipped.gguf", damaged())
    assert any(outcomes) and not all(outcomes)


@pytest.mark.parametrize("number", [2**60, 2**63, 2**64 - 1, 2**31, 0])
def test_an_absurd_number_anywhere(whole: bytes, tmp_path: Path, number: int) -> None:
    """Eight bytes overwritten at each third place of the header: every count, length, size and offset is met."""
    header = read_header_size(tmp_path, whole)
    field = struct.pack("<Q", number)
    damaged = (whole[:at] + field + whole[at + 8 :] for at in range(0, header, 3))
    assert False in load_all(tmp_path / "absurd.gguf", damaged)


def read_header_size(tmp_path: Path, whole: bytes) -> int:
    path = tmp_path / "whole.gguf"
    path.write_bytes(whole)
    return min(info.start for info in read_gguf(path).tensors.values())


# One field at a time, built by hand.


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, offset)


def file(pairs: Iterable[bytes] = (), tensors: Iterable[bytes] = (), data: int = 0, **changed: Any) -> bytes:
    pairs, tensors = list(pairs), list(tensors)
    head = changed.get("magic", b"GGUF") + struct.pack(
        "<IQQ", changed.get("version", 3), changed.get("num_tensors", len(tensors)), changed.get("num_pairs", len(pairs))
    )
    body = head + b"".join(pairs) + b"".join(tensors)
    return body + bytes(-len(body) % 32 + data) if tensors else body


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


def alignment(value: int) -> bytes:
    return pair("general.alignment", 4, struct.pack("<I", value))


DAMAGED = {
    "cannot be read": b"",
    "not a GGUF file": file(magic=b"GGML"),
    "begins with b'PK": b"PK\x03\x04 something else",
    "version is 1": file(version=1),
    "version is 4": file(version=4),
    "big-endian": file(version=3 << 24),
    "tensors: 1152921504606846976": file(num_tensors=2**60),
    "pairs: 1152921504606846976": file(num_pairs=2**60),
    "do not fit": file([pair("k", 9, array(8, 2**60))]),
    "numbers: 9223372036854775808": file([pair("k", 9, array(10, 2**63))]),
    "string of 1152921504606846976 bytes": file([pair("k", 8, struct.pack("<Q", 2**60) + b"abc")]),
    "not UTF-8": file([pair("k", 8, struct.pack("<Q", 2) + b"\xff\xfe")]),
    "type 13": file([pair("k", 13, b"")]),
    "array of type 9": file([pair("k", 9, array(9, 1, array(4, 1, bytes(4))))]),
    "array of type 99": file([pair("k", 9, array(99, 1, bytes(8)))]),
    "'k' occurs twice": file([pair("k", 0, b"\1"), pair("k", 0, b"\1")]),
    "alignment is 0": file([alignment(0)]),
    "alignment is 24": file([alignment(24)]),
    "alignment is 'x'": file([pair("general.alignment", 8, string("x"))]),
    "has 0 dimensions": file([], [tensor("t", ())], 32),
    "has 5 dimensions": file([], [tensor("t", (1, 1, 1, 1, 1))], 32),
    "needs no zero": file([], [tensor("t", (0, 4))], 32),
    "multiple of 32 at the end": file([], [tensor("t", (33, 2), 8)], 128),
    "beyond the end": file([], [tensor("t", (9,))], 32),
    f"ends at byte {2**62 + 2**40 + 96}": file([], [tensor("t", (2**20, 2**20, 2**20), 0, 2**40)], 32),
    "not a multiple of 32": file([], [tensor("t", (1,), 0, 31)], 96),
    "overlaps 'a'": file([], [tensor("a", (16,)), tensor("b", (4,), 0, 32)], 96),
    "'t' occurs twice": file([], [tensor("t", (1,)), tensor("t", (1,), 0, 32)], 96),
    r"'t' has type Q6_K \(14\); supported: F32": file([], [tensor("t", (256,), 14)], 256),
    "'t' has type 4000": file([], [tensor("t", (256,), 4000)], 256),
}


@pytest.mark.parametrize("says", DAMAGED)
def test_one_field(tmp_path: Path, says: str) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(DAMAGED[says])
    with pytest.raises(InvalidCheckpoint, match=says):
        read_gguf(path)


def test_what_the_hand_builds_is_sound(tmp_path: Path) -> None:
    """The same builders, undamaged: so each case above fails for its own reason."""
    path = tmp_path / "sound.gguf"
    pairs = [alignment(32), pair("s", 8, string("x")), pair("a", 9, array(4, 1, bytes(4))), pair("e", 9, array(8, 0))]
    path.write_bytes(file(pairs, [tensor("a", (16,)), tensor("b", (4,), 0, 64), tensor("q", (32, 2), 8, 96)], 192))
    found = read_gguf(path)
    assert list(found.tensors) == ["a", "b", "q"] and found.metadata["s"] == "x" and found.metadata["e"] == []
    assert isinstance(found.tensor("b"), np.ndarray)


def test_a_block_format_holds_matrices(tmp_path: Path) -> None:
    path = tmp_path / "vector.gguf"
    path.write_bytes(file([], [tensor("t", (32,), 8)], 64))
    with pytest.raises(InvalidCheckpoint, match="block formats hold matrices"):
        read_gguf(path).tensor("t")


@pytest.mark.parametrize("path", ["nowhere.gguf", ".", "nul\0.gguf"])
def test_no_such_file(path: str) -> None:
    with pytest.raises(InvalidCheckpoint, match="cannot be read"):
        read_gguf(path)


def test_type_numbers_are_ggml_s() -> None:
    from labcore.loaders.gguf import TENSOR_TYPES, UNSUPPORTED_TYPES

    for number, name in (TENSOR_TYPES | UNSUPPORTED_TYPES).items():
        assert gguf.GGMLQuantizationType(number).name == name
