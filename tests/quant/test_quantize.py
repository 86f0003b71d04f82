"""Our quantizers give the bytes of gguf's; what cannot be quantized is named; int8 channels of zeros come back as zeros."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labcore.core.errors import InvalidCheckpoint, ShapeError
from labcore.quant.gguf_blocks import FORMATS
from labcore.quant.int8 import Int8Tensor, quantize_int8
from labcore.quant.quantize import quantize

F32 = np.float32


def oracle(format: str, weight: np.ndarray) -> np.ndarray:
    return gguf.quants.quantize(weight, gguf.GGMLQuantizationType[format])


@pytest.mark.parametrize("format", FORMATS)
def test_the_bytes_are_gguf_s(format: str) -> None:
    rng = np.random.default_rng(1)
    spread = rng.standard_normal((64, 320), F32) * F32(10) ** rng.integers(-6, 4, (64, 1)).astype(F32)
    coarse = rng.integers(-8, 9, (64, 320)).astype(F32) / 16  # many ties
    for weight in (spread, coarse, np.zeros((2, 64), F32), np.full((2, 64), -0.7, F32)):
        tensor = quantize(format, weight)
        assert tensor.shape == weight.shape and tensor.format == format
        assert np.array_equal(tensor.data, oracle(format, weight))
        expanded = gguf.quants.dequantize(tensor.data, gguf.GGMLQuantizationType[format])
        assert np.array_equal(tensor.dequantize().view(np.uint32), expanded.view(np.uint32))


@pytest.mark.parametrize("format", FORMATS)
@given(values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=32, max_size=32))
def test_any_block_has_gguf_s_bytes_and_comes_back_within_a_step(format: str, values: list[float]) -> None:
    weight = np.array([values], F32)
    tensor = quantize(format, weight)
    span = {"Q8_0": np.abs(weight).max() / 127, "Q4_0": np.abs(weight).max() / 8, "Q4_1": np.ptp(weight) / 15}[format]
    if span > 1e-38:  # below, ggml's 1 / scale is infinite and its bytes are those of NaN
        assert np.array_equal(tensor.data, oracle(format, weight))
    # half a step (Q4_0: a whole one, at the end that has no level), and what float16 takes from scale and minimum
    lost = 2.0**-11 * 2 * np.abs(weight).max() + 16 * 2.0**-24
    assert np.abs(tensor.dequantize() - weight).max() <= span * (1 if format == "Q4_0" else 0.5) + 1.1 * lost + span * 0.01


@pytest.mark.parametrize("format", FORMATS)
def test_a_block_below_float16_comes_back_as_zeros(format: str) -> None:
    for small in (1e-12, 1e-38, 1e-42):
        with np.errstate(all="raise", under="ignore"):
            tensor = quantize(format, np.full((1, 32), small, F32) * F32([[1, -1] * 16]))
        assert not tensor.dequantize().any()


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (F32([[0] * 32, [np.nan] * 32]), "row 1 holds a NaN or an infinity"),
        (F32([[0] * 31 + [-np.inf]]), "row 0 holds a NaN or an infinity"),
        (np.zeros((2, 33), F32), "multiples of 32; got 33"),
        (F32([[0] * 32, [3e38, -3e38] * 16]), r"row 1 holds 3e\+38, for which"),
    ],
)
@pytest.mark.parametrize("format", FORMATS)
def test_what_has_no_blocks_is_refused(format: str, weight: np.ndarray, says: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=says):
        quantize(format, weight)


def test_an_unknown_format_and_a_vector_are_refused() -> None:
    with pytest.raises(InvalidCheckpoint, match="unknown block format 'Q5_0'; known: Q8_0, Q4_0, Q4_1"):
        quantize("Q5_0", np.zeros((1, 32), F32))
    for make in (quantize_int8, lambda weight: quantize("Q8_0", weight)):
        with pytest.raises(ShapeError, match=r"shape \(32,\); expected \(rows, columns\)"):
            make(np.zeros(32, F32))


def test_int8_has_a_scale_per_channel() -> None:
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((5, 96), F32) * F32([[1e-20], [1e-3], [1], [1e4], [1e37]])
    tensor = quantize_int8(weight)
    assert tensor.shape == (5, 96) and tensor.nbytes == 5 * 96 + 5 * 4
    assert np.array_equal(tensor.scales, np.abs(weight).max(axis=1) / F32(127))
    assert np.abs(tensor.data.astype(int)).max(axis=1).tolist() == [127] * 5
    error = np.abs(tensor.dequantize().astype(float) - weight).max(axis=1)
    assert (error <= tensor.scales * 0.5001).all()


def test_a_channel_of_zeros_comes_back_as_zeros() -> None:
    """Public reports: amax / 127 = 0 gave 0 / 0 = NaN, which no product with 0 removes; in float16 a channel of 1e-8 too."""
    least = np.finfo(F32).smallest_subnormal
    weight = F32([[0, 0], [-0.0, 0], [1e-8, -1e-8], [least, 0], [1e-38, 1e-39], [1, -1]])
    with np.errstate(all="raise", under="ignore"):
        tensor = quantize_int8(weight)
    assert tensor.scales[[0, 1, 3, 4]].tolist() == [0] * 4 and not tensor.dequantize()[[0, 1, 3, 4]].any()
    assert tensor.data[2].tolist() == [127, -127] and np.allclose(tensor.dequantize()[2], weight[2], rtol=1e-6)
    assert tensor.dequantize()[5].tolist() == [1, -1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_int8_names_a_row_that_is_not_finite(bad: float) -> None:
    with pytest.raises(InvalidCheckpoint, match="row 2 holds a NaN or an infinity; only finite weights"):
        quantize_int8(F32([[1, 2], [0, 0], [1, bad], [bad, 1]]))


@pytest.mark.parametrize(
    ("data", "scales", "says"),
    [
        (np.zeros((2, 3), np.uint8), np.zeros(2, F32), r"data is uint8 \(2, 3\)"),
        (np.zeros((2, 4), np.int8), np.zeros(2, F32), r"data is int8 \(2, 4\) .* expected int8 \(2, 3\)"),
        (np.zeros((3, 2), np.int8).T, np.zeros(2, F32), "C-contiguous"),
        (np.zeros((2, 3), np.int8), np.zeros((2, 1), F32), r"scales is float32 \(2, 1\)"),
        (np.zeros((2, 3), np.int8), np.zeros(2), "scales is float64"),
    ],
)
def test_a_wrong_int8_tensor_is_refused(data: np.ndarray, scales: np.ndarray, says: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=says):
        Int8Tensor((2, 3), data, scales)
