"""Which backends there are, which of them this machine can run, and why not the others.

>>> get_backend("numpy").name
'numpy'
>>> [(s.name, s.available, s.reason) for s in backend_statuses()]   # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from labcore.core.errors import BackendUnavailable, LabError
from labcore.kernels.api import Backend


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """One line of `labcore info`: `reason` says what the backend is, or why it cannot run."""

    name: str
    available: bool
    reason: str


def _reference(dtype: type[np.floating]) -> Backend:
    from labcore.kernels.reference import ReferenceBackend

    return ReferenceBackend(dtype)


def _native(threads: int | None) -> Backend:
    from labcore.kernels.native import NativeBackend

    return NativeBackend(threads=threads)


def _optional(module: str, kind: str, packages: str) -> Backend:
    try:
        make = getattr(import_module(f"labcore.kernels.{module}"), kind)
    except ImportError as error:
        raise BackendUnavailable(f"not installed ({error}); `pip install {packages}`") from None
    return make()


# Fastest first; what needs a GPU stands last.
_FACTORIES: dict[str, tuple[Callable[[int | None], Backend], str]] = {
    "native": (_native, "C++, float32, batch-invariant"),
    "torch": (
        lambda threads: _optional("torch_backend", "TorchBackend", "torch"),
        "torch's own operators on the CPU, float32; equal within tolerance",
    ),
    "numpy": (lambda threads: _reference(np.float32), "float32 through BLAS; equal within tolerance"),
    "reference": (lambda threads: _reference(np.float64), "float64, row by row: the oracle, slow"),
    "triton": (
        lambda threads: _optional("triton_kernels.backend", "TritonBackend", "torch triton"),
        "bfloat16 on a CUDA device; equal within tolerance",
    ),
}


def get_backend(name: str | None = None, *, threads: int | None = None) -> Backend:
    """The backend of that name; without a name, the fastest that this machine runs.

    threads: of the native backend; None = all cores. Raises BackendUnavailable with the reason, BrokenArtefact (kernels
    that are there and do not load: no slower backend quietly steps in), or InvalidConfig (threads, LABCORE_ISA).
    """
    if name is None:
        try:
            return _native(threads)
        except BackendUnavailable:
            return _reference(np.float32)
    if name not in _FACTORIES:
        raise BackendUnavailable(f"unknown backend {name!r}; known: {', '.join(_FACTORIES)}")
    return _FACTORIES[name][0](threads)


def backend_statuses() -> list[BackendStatus]:
    """Every backend with its availability and the reason."""
    statuses = []
    for name, (factory, description) in _FACTORIES.items():
        try:
            factory(1)
        except LabError as error:
            statuses.append(BackendStatus(name, False, str(error)))
        else:
            statuses.append(BackendStatus(name, True, description))
    return statuses
