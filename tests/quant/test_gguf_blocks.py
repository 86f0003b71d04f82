"""Our dequantizers give the bits of gguf's."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from labcore.core.errors import InvalidCheckpoint
from labcore.quant.gguf_blocks import FORMATS, dequantize, unpack
from labcore.quant.quantized_tensor import QuantizedTensor

SCALES = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.1, -0.37, 6e-8, -6e-8, 3.1e-5, 6.1e-5, 65504.0, -65504.0, np.inf, -np.inf, np.nan], np.float16
)


def oracle(format: str, data: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[format])


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return ours.dtype == theirs.dtype == np.float32 and np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("format", FORMATS)
def test_layout_is_ggml_s(format: str) -> None:
    assert (FORMATS[format].elements, FORMATS[format].bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format]]


@pytest.mark.parametrize("format", FORMATS)
def test_random_bytes(format: str) -> None:
    data = np.random.default_rng(1).integers(0, 256, (64, 9 * FORMATS[format].bytes), np.uint8)
    with np.errstate(all="ignore"):  # random scales are infinite or NaN here and there
        assert same_bits(dequantize(format, data), oracle(format, data))


@pytest.mark.parametrize("format", FORMATS)
def test_chosen_scales_with_all_quants(format: str) -> None:
    """Zero, negative, subnormal, largest, infinite and NaN scales (and minima), each with every value of a byte."""
    size = FORMATS[format].bytes
    header = 4 if format == "Q4_1" else 2
    per_block = size - header
    blocks = []
    for first in SCALES:
        for second in SCALES if format == "Q4_1" else SCALES[:1]:
            for start in range(0, 256, per_block):
                scale = np.array([first, second], np.float16).view(np.uint8)[:header]
                blocks.append(np.concatenate([scale, (np.arange(per_block) + start).astype(np.uint8)]))
    data = np.stack(blocks)
    with np.errstate(all="ignore"):
        assert same_bits(dequantize(format, data), oracle(format, data))


@pytest.mark.parametrize("format", FORMATS)
def test_unpack_gives_the_parts_of_the_weight(format: str) -> None:
    weights = np.random.default_rng(2).standard_normal((8, 96)).astype(np.float32)
    data = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[format])
    quants, scale, minimum = unpack(format, data)
    assert quants.dtype == np.int8 and quants.shape == (8, 3, 32)
    assert scale.shape == minimum.shape == (8, 3, 1)
    assert np.array_equal((scale * quants + minimum).reshape(8, 96), dequantize(format, data))
    assert np.abs(dequantize(format, data) - weights).max() < (0.02 if format == "Q8_0" else 0.4)


@pytest.mark.parametrize("format", FORMATS)
def test_read_only_and_unaligned_views(format: str) -> None:
    size = FORMATS[format].bytes
    raw = np.random.default_rng(3).integers(0, 120, 1 + 4 * size, np.uint8)
    view = np.frombuffer(raw.tobytes(), np.uint8, offset=1).reshape(2, 2 * size)
    tensor = QuantizedTensor(format, (2, 64), view)
    assert not view.flags.writeable
    assert same_bits(tensor.dequantize(), oracle(format, view.copy()))
    assert tensor.nbytes == 4 * size


@pytest.mark.parametrize(
    ("format", "shape", "data", "says"),
    [
        ("Q5_0", (1, 32), np.zeros((1, 22), np.uint8), "unknown block format 'Q5_0'"),
        ("Q8_0", (1, 33), np.zeros((1, 34), np.uint8), "multiples of 32; got 33"),
        ("Q8_0", (2, 32), np.zeros((1, 34), np.uint8), r"expected uint8 \(2, 34\)"),
        ("Q8_0", (1, 32), np.zeros((1, 34), np.int8), "got int8"),
        ("Q8_0", (2, 32), np.zeros((2, 68), np.uint8)[:, ::2], "C-contiguous"),
    ],
)
def test_a_wrong_tensor_is_refused(format: str, shape: tuple[int, int], data: np.ndarray, says: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=says):
        QuantizedTensor(format, shape, data)
