"""From a checkpoint to a model on a backend.

>>> model = load_model("lab")
>>> model = load_model("smollm2", weights="f32", backend="numpy")
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labcore.core.errors import InvalidConfig
from labcore.kernels.api import Backend, Weight
from labcore.kernels.registry import get_backend
from labcore.loaders.checkpoint import Checkpoint
from labcore.loaders.load import load_checkpoint
from labcore.model.llama import LlamaModel, rope_tables

WEIGHT_FORMS = ("packed", "f32")


def load_model(model: str | Path | Checkpoint, *, weights: str = "packed", backend: str | Backend | None = None) -> LlamaModel:
    """Load a model and bring it onto a backend.

    model:   a name of the zoo ("smollm2", "lab"), a path, or a checkpoint already read.
    weights: "packed" keeps the block formats and int8 of the file; "f32" expands them. On a backend without packed products the
             two are the same.
    backend: a name, a backend, or None for the fastest that this machine runs.
    Raises InvalidCheckpoint, FetchFailed (not in the cache), BackendUnavailable, InvalidConfig.
    """
    if weights not in WEIGHT_FORMS:
        raise InvalidConfig(f"weights is {weights!r}; expected one of {', '.join(WEIGHT_FORMS)}")
    ops = get_backend(backend) if backend is None or isinstance(backend, str) else backend
    checkpoint = model if isinstance(model, Checkpoint) else load_checkpoint(model)
    prepared: dict[str, Weight] = {}
    for name, tensor in checkpoint.tensors.items():  # one at a time: the expanded form of one matrix is alive, not of all
        if weights == "f32" and not isinstance(tensor, np.ndarray):
            tensor = tensor.dequantize()
        prepared |= ops.prepare({name: tensor})
    prepared |= ops.prepare(rope_tables(checkpoint.config))
    return LlamaModel(checkpoint.config, ops, prepared, checkpoint.tokenizer)
