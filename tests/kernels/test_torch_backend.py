"""The mirror in torch: what the native doors refuse it refuses, in the same words; int8 pools; types narrower than float32.

Its operators are held to the oracle with all others in test_operators.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import ids

from labcore.core.config import CacheConfig
from labcore.core.errors import BackendUnavailable, ShapeError
from labcore.kernels.api import ForwardBatch
from labcore.kernels.integer_reference import expand_kv, quantize_kv
from labcore.kernels.torch_backend import TorchBackend, _expanded, _quantized
from labcore.model.weights import load_model

EPS = 1e-5


def test_the_torch_mirror_refuses_in_the_same_words() -> None:
    b, x, w = TorchBackend(), torch.ones(4, 8), torch.ones(8)
    weight = torch.ones(5, 8)
    for call, error, words in [
        (lambda: b.rms_norm(x.double(), w, EPS), TypeError, "rms_norm: x is float64; expected float32"),
        (lambda: b.rms_norm(x[0], w, EPS), ShapeError, r"rms_norm: x has shape \(8,\); expected \(rows, dim\)"),
        (
            lambda: b.rms_norm(x, w[:7], EPS),
            ShapeError,
            r"rms_norm: weight has shape \(7,\); expected \(8,\) to match x \(4, 8\)",
        ),
        (
            lambda: b.rms_norm(torch.ones(8, 4).T, w, EPS),
            TypeError,
            r"rms_norm: x has shape \(4, 8\) in other strides; expected a C-contiguous",
        ),
        (lambda: b.rms_norm(None, w, EPS), TypeError, "rms_norm: x is of type NoneType; expected"),
        (
            lambda: b.add_rms_norm(x, x[1:], w, EPS),
            ShapeError,
            r"add_rms_norm: residual has shape \(3, 8\); expected \(4, 8\) to match x",
        ),
        (
            lambda: b.linear(x[:, :7].clone(), weight),
            ShapeError,
            r"linear: x has shape \(4, 7\); expected \(rows, 8\) to match weight \(5, 8\)",
        ),
        (lambda: b.linear(x, weight, w), ShapeError, r"linear: bias has shape \(8,\); expected \(5,\) to match weight \(5, 8\)"),
        (lambda: b.silu_and_mul(x, x[:3]), ShapeError, r"silu_and_mul: up has shape \(3, 8\); expected \(4, 8\) to match gate"),
        (lambda: b.embedding(ids([5]), weight), ValueError, r"token id out of range: got 5 to 5, expected \[0, 5\)"),
    ]:
        with pytest.raises(error, match=words):
            call()


def test_a_tensor_handed_to_a_native_door_is_named() -> None:
    from labcore.kernels.native import NativeBackend

    with pytest.raises(
        TypeError, match=r"rms_norm: x is of type Tensor; expected a numpy array of float32 \(of a torch tensor: .cpu"
    ):
        NativeBackend(threads=1)._operators.rms_norm(np.empty((4, 8), np.float32), torch.ones(4, 8), np.ones(8, np.float32), EPS)


def test_int8_pools_have_the_bytes_of_the_reference() -> None:
    """Rows of zeros, of next to nothing, with a NaN, with an infinity too."""
    x = np.random.default_rng(0).standard_normal((5, 3, 8), dtype=np.float32)
    x[0, 0], x[1, 1], x[2, 2, 3], x[3, 0, 1] = 0, 1e-35, np.nan, np.inf
    pool = _quantized(torch.from_numpy(x))
    assert np.array_equal(pool.numpy(), quantize_kv(x))
    assert np.array_equal(_expanded(pool).numpy(), expand_kv(quantize_kv(x)), equal_nan=True)


@pytest.mark.parametrize(("backend", "kv_dtype", "bound"), [
    (TorchBackend(), "float32", 2e-5), (TorchBackend(), "int8", 2e-5), (TorchBackend(dtype=torch.float64), "float32", 2e-5),
    (TorchBackend(dtype=torch.bfloat16), "float32", 0.05),
])  # fmt: skip
def test_the_lab_model_in_torch(backend: TorchBackend, kv_dtype: str, bound: float) -> None:
    """A prompt through the decoder: within rounding of numpy's, relative to the largest logit."""
    batch = ForwardBatch.of_one_sequence([1, 2, 3, 4, 5])
    logits = []
    for name in (backend, "numpy"):
        model = load_model("lab", backend=name)
        logits.append(model.forward(batch, model.new_kv_cache(CacheConfig.one_block(5, kv_dtype))))
    assert np.abs(logits[0] - logits[1]).max() < bound * np.abs(logits[1]).max()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match="sees no CUDA device; device='cpu' runs everywhere"):
        TorchBackend(device="cuda")
