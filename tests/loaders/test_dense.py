"""Types of numbers against torch, every value of the narrow ones; rounding; what is too large."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.dense import STORED, decode, encode

TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint16 if values.itemsize == 2 else np.uint32)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_every_number_is_read_as_torch_reads_it_and_written_back(dtype: str) -> None:
    stored = np.arange(1 << 16, dtype=np.uint16).view(STORED[dtype])
    theirs = torch.from_numpy(stored.view(np.int16).copy()).view(TORCH[dtype]).float().numpy()
    ours = decode(stored, dtype)
    assert ours.dtype == np.float32 and np.array_equal(ours, theirs, equal_nan=True)
    number = ~np.isnan(ours)
    assert np.array_equal(bits(encode(ours, dtype))[number], bits(stored)[number])
    assert np.isnan(decode(encode(ours, dtype), dtype)[~number]).all()


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_rounding_is_torchs(dtype: str) -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(200_000) * 10.0 ** rng.integers(-9, 4, 200_000)).astype(np.float32)
    values[:4] = 1 + np.float32(2) ** -np.array([8, 9, 11, 12])  # ties, and just beside them
    theirs = torch.from_numpy(values).to(TORCH[dtype]).view(torch.int16).numpy()
    assert np.array_equal(bits(encode(values, dtype)), bits(theirs))


def test_float32_is_a_view() -> None:
    values = np.ones((3, 5), np.float32)
    assert np.shares_memory(decode(values, "F32"), values) and np.shares_memory(encode(values, "F32"), values)


@pytest.mark.parametrize(("dtype", "large"), [("F16", 65520.0), ("BF16", 3.4e38)])
def test_a_number_that_does_not_fit_is_refused_and_infinity_stays(dtype: str, large: float) -> None:
    with pytest.raises(InvalidCheckpoint, match=f"w holds .*, which {dtype} cannot"):
        encode(np.float32([1, -large]), dtype, "w")
    assert decode(encode(np.float32([np.inf, -np.inf]), dtype), dtype).tolist() == [np.inf, -np.inf]
