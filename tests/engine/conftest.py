"""The lab model on each exact backend, loaded once."""

from __future__ import annotations

import pytest
from support import exact_backends

from labcore.kernels.registry import get_backend
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model


@pytest.fixture(scope="session")
def lab_model() -> LlamaModel:
    """The lab model on the fastest exact backend."""
    backend = get_backend()
    return load_model("lab", backend=backend if backend.exact else "reference")


@pytest.fixture(scope="session", params=exact_backends())
def exact_lab_model(request: pytest.FixtureRequest) -> LlamaModel:
    return load_model("lab", backend=exact_backends()[request.param])
