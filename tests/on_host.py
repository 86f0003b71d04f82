"""A backend with arrays of its own kind (torch), used from tests that speak numpy: arrays are taken in and out, never copied."""

from __future__ import annotations

from typing import Any

import numpy as np


def torch_backend() -> OnHost:
    """(torch is imported here: the sanitizers' run has none.)"""
    from labcore.kernels.torch_backend import TorchBackend

    return OnHost(TorchBackend())


class OnHost:
    """Every method of the backend; floats and pools of int8 go in as tensors over the same memory, tensors come out as arrays."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if not callable(found) or name == "prepare":  # what `prepare` makes belongs to the backend
            return found
        return lambda *args: _out(found(*map(_in, args)))


def _in(value: Any) -> Any:
    import torch

    if isinstance(value, list | tuple):
        return type(value)(map(_in, value))
    return torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype in (np.float32, np.int8) else value


def _out(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_out, value))
    return value.numpy() if hasattr(value, "numpy") else value
