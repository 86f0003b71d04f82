"""What the writers of model files share: which type a tensor is written in, and a place to write until all is there.

Matrices are written in the type that is asked for, vectors (norms and biases) in float32, which is what ggml computes
with: they are few, and rounding them would not come back.

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
from labcore.loaders.checkpoint import HEAD, Checkpoint, Tensor, required_tensors
from labcore.loaders.dense import STORED
from labcore.quant.quantized_tensor import QuantizedTensor


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
    """The type each tensor is written in, from the embedding to the head: matrices as asked for, vectors in float32."""
    names = [*required_tensors(checkpoint.config), *([] if checkpoint.tied else [HEAD])]
    return {name: dtype if len(checkpoint.shapes[name]) == 2 else "F32" for name in names}


def num_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape) * STORED[dtype].itemsize


def float32(tensor: Tensor) -> np.ndarray:
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
