"""What the writers of model files share: which type a tensor is written in, and a place to write until all is there.

Matrices are written in the type that is asked for, vectors (norms and biases) in float32, which is what ggml computes
with: they are few, and rounding them would not come back. Where the type is a block format of 4 bits, the embedding and
the head are Q8_0: each of their rows is a token of its own, and the head's error goes into the logits as it is. A matrix
whose rows are no whole blocks stays in float32. What is in the type already is written as it lies.

    >>> with whole(Path("lab.gguf")) as part:
    ...     part.write_bytes(b"...")    # `lab.gguf` appears when the block ends, and not if it fails
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.checkpoint import EMBEDDING, HEAD, Checkpoint, Tensor, required_tensors
from labcore.loaders.dense import STORED, encode
from labcore.quant.gguf_blocks import FORMATS, BlockFormat
from labcore.quant.int8 import Int8Tensor, quantize_int8
from labcore.quant.quantize import quantize
from labcore.quant.quantized_tensor import QuantizedTensor

LAYOUTS = FORMATS | {name: BlockFormat(1, dtype.itemsize) for name, dtype in STORED.items()} | {"I8": BlockFormat(1, 1)}


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what shall appear at `path`: whole, when all is written, or not at all. Beside it, and nobody else's."""
    if os.path.lexists(path):
        raise InvalidCheckpoint(f"{path} exists; remove it, or choose another name")
    with TemporaryDirectory(prefix=".labcore-", dir=path.absolute().parent, ignore_cleanup_errors=True) as work:
        part = Path(work, path.name)
        yield part
        os.replace(part, path)


def stored_types(checkpoint: Checkpoint, dtype: str) -> dict[str, str]:
    """The type each tensor is written in, from the embedding to the head.

    InvalidCheckpoint: a block format is asked for, and there is no matrix that it fits.
    """
    names = [*required_tensors(checkpoint.config), *([] if checkpoint.tied else [HEAD])]
    types = {name: _stored_type(name, checkpoint.shapes[name], dtype) for name in names}
    if dtype in FORMATS and not set(types.values()) & FORMATS.keys():
        c = checkpoint.config
        raise InvalidCheckpoint(f"{c.name}: rows of {c.hidden_size} are no whole blocks of {dtype}; choose another type")
    return types


def _stored_type(name: str, shape: tuple[int, ...], dtype: str) -> str:
    if len(shape) != 2 or shape[1] % LAYOUTS[dtype].elements:
        return "F32"
    return "Q8_0" if dtype in FORMATS and name in (EMBEDDING, HEAD) else dtype


def num_bytes(shape: tuple[int, ...], dtype: str) -> int:
    layout = LAYOUTS[dtype]
    return prod(shape) // layout.elements * layout.bytes


def float32(tensor: Tensor) -> np.ndarray:
    return tensor if isinstance(tensor, np.ndarray) else tensor.dequantize()


def stored(tensor: Tensor, dtype: str, name: str) -> np.ndarray:
    """What a file of this type holds: rows of numbers, or of blocks as bytes. InvalidCheckpoint names the tensor."""
    if dtype not in FORMATS:
        return encode(float32(tensor), dtype, name)
    if isinstance(tensor, QuantizedTensor) and tensor.format == dtype:
        return tensor.data
    try:
        return quantize(dtype, float32(tensor)).data
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{name}: {error}") from None


def stored_int8(tensor: Tensor, name: str) -> Int8Tensor:
    """The same for int8, which is two arrays."""
    try:
        return tensor if isinstance(tensor, Int8Tensor) else quantize_int8(float32(tensor))
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{name}: {error}") from None
