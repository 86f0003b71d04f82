"""Checks on files and text: the loaders say what is right.

>>> check_whole(lambda data: None)
not answered yet: your function returned None for data=b'abc'
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from labcore.lab.exercises.verdict import Answer, Verdict, judge, unlike
from labcore.loaders.dense import encode
from labcore.loaders.safetensors_file import read_safetensors
from labcore.loaders.tokenizer import IncrementalDecoder, LabTokenizer

NOTES = ": `__metadata__` holds notes, and is no tensor"


def check_places(answer: Answer) -> Verdict:
    """answer(data): data are the bytes of a safetensors file; by tensor name, (first byte, byte after the last) in the file."""
    one, two = np.ones((2, 3), np.float32), np.ones(5, np.float16)
    files = {
        "a file of one tensor": (save({"a": one}),),
        "a file of two types": (save({"a": two, "b": one}),),
        "a file with a note in its header": (save({"x": one, "y": one[:0], "z": two}, {"format": "pt"}),),
    }

    def moved(data: bytes, by: int) -> dict[str, tuple[int, int]]:
        return {name: (begin + by, end + by) for name, (begin, end) in _places(data).items()}

    def slip(got: object, data: bytes) -> str:
        if got == moved(data, -8 - int.from_bytes(data[:8], "little")):
            return ": these count from the first byte of the data, not of the file"
        if got == moved(data, -8):
            return ": these count from the header; before it stand 8 bytes, its length"
        return NOTES if isinstance(got, dict) and "__metadata__" in got else ""

    def stumble(error: Exception, data: bytes) -> str:
        return NOTES if isinstance(error, KeyError) and b"__metadata__" in data else ""

    return judge(answer, files, unlike(_places, "labcore's reader", slip=slip), "labcore's reader", stumble)


def check_bf16(answer: Answer) -> Verdict:
    """answer(bits): a float32 as a whole number of 32 bits; the nearest bfloat16 as one of 16 bits, ties to the even one."""
    numbers = [1.0, 1 / 3, -0.1, 0.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-23, 1.9999999, 2**-140, -65504.0]
    patterns = np.array(numbers, np.float32).view(np.uint32).tolist()
    cases = {f"bits=0x{bits >> 16:04x}_{bits & 0xFFFF:04x}": (bits,) for bits in patterns}

    def fault(got: object, bits: int) -> str:
        got, expected = got.item() if isinstance(got, np.generic) else got, _bf16(bits)
        if type(got) is not int:
            return f"your function says {got!r}, labcore's writer 0x{expected:04x}, a whole number"
        if got == expected:
            return ""
        slip = ": the lower half was cut off, not rounded" if got == bits >> 16 else ""
        if bits & 0xFFFF == 0x8000:  # half of the last bit that is kept
            slip = f": a tie goes to the even number, not always {'up' if got > expected else 'down'}"
        return f"your function says 0x{got:04x}, labcore's writer 0x{expected:04x}{slip}"

    return judge(answer, cases, fault, "labcore's writer")


def check_whole(answer: Answer) -> Verdict:
    """answer(data): data begin a text in UTF-8; how many bytes at the front are whole characters."""
    texts = [text.encode() for text in ("abc", "é", "aé日🚀", "👩‍🚀")]
    cases = {f"data={text[:end]!r}": (text[:end],) for text in texts for end in range(len(text), -1, -1)}

    def slip(got: object, data: bytes) -> str:
        whole = _whole(data)
        if got == len(data[:whole].decode()):
            return ": that is how many characters, not bytes"
        return ": the last character is not complete" if isinstance(got, int) and got > whole else ""

    return judge(answer, cases, unlike(_whole, "labcore's decoder", slip=slip), "labcore's decoder")


def _places(data: bytes) -> dict[str, tuple[int, int]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(data)
        return {name: (tensor.start, tensor.start + tensor.nbytes) for name, tensor in read_safetensors(path).items()}


def _bf16(bits: int) -> int:
    return int(encode(np.array([bits], np.uint32).view(np.float32), "BF16")[0])


def _whole(data: bytes) -> int:
    """Bytes that a stream has given out when these have come; in the lab's vocabulary a byte is its own token."""
    return len(IncrementalDecoder(LabTokenizer()).feed(data).encode())
