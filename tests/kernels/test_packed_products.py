"""The native products with quantized weights: the integer reference, bit for bit; batch-invariant; and its own first rung."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ISAS

from labcore.core.errors import ShapeError
from labcore.kernels.integer_reference import linear_blocks, linear_int8
from labcore.kernels.native import NativeBackend
from labcore.quant.int8 import Int8Tensor, quantize_int8
from labcore.quant.quantize import quantize
from labcore.quant.quantized_tensor import QuantizedTensor

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")

FORMATS = ["Q8_0", "Q4_0", "Q4_1", "INT8"]
Quantized = QuantizedTensor | Int8Tensor


def weight_of(format: str, rng: np.random.Generator, outputs: int, columns: int) -> Quantized:
    dense = rng.standard_normal((outputs, columns), dtype=np.float32) * rng.choice([1e-3, 1, 30], (outputs, 1)).astype(np.float32)
    if format == "INT8":
        return quantize_int8(dense)
    if format != "Q4_0":
        return quantize(format, dense)
    blocks = rng.integers(0, 256, (outputs, columns // 32, 18), np.uint8)  # any nibbles, and a scale that is no NaN
    blocks[..., :2] = rng.uniform(-0.5, 0.5, (outputs, columns // 32, 1)).astype(np.float16).view(np.uint8)
    return QuantizedTensor("Q4_0", (outputs, columns), blocks.reshape(outputs, -1))


def expected(x: np.ndarray, weight: Quantized, bias: np.ndarray | None, isa: str) -> np.ndarray:
    product = linear_int8 if isinstance(weight, Int8Tensor) else linear_blocks
    return product(x, weight, bias, fused=isa != "plain")  # type: ignore[arg-type]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit, signs of zeros included; any NaN equals any other."""
    return a.dtype == b.dtype and np.array_equal(
        np.where(np.isnan(a), 0, a).view(np.int32), np.where(np.isnan(b), 0, b).view(np.int32)
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("rows", "columns", "outputs"), [(1, 32, 1), (3, 96, 17), (17, 64, 33), (7, 576, 48), (70, 1536, 64)])
def test_products_are_the_integer_reference(isa: str, format: str, rows: int, columns: int, outputs: int) -> None:
    rng = np.random.default_rng(columns + rows)
    weight, bias = weight_of(format, rng, outputs, columns), rng.standard_normal(outputs, dtype=np.float32)
    x = rng.standard_normal((rows, columns), dtype=np.float32) * rng.choice([1e-4, 1, 100], (rows, 1)).astype(np.float32)
    for backend in (NativeBackend(isa=isa, threads=2), NativeBackend(isa=isa, threads=1, reference=True)):
        packed = backend.prepare({"w": weight})["w"]
        for added in (None, bias):
            assert same_bits(backend.linear(x, packed, added), expected(x, weight, added, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("rows", "columns", "outputs"), [(1, 1, 1), (3, 17, 3), (5, 781, 40)])
def test_int8_takes_any_number_of_columns(isa: str, rows: int, columns: int, outputs: int) -> None:
    rng = np.random.default_rng(columns)
    weight, x = weight_of("INT8", rng, outputs, columns), rng.standard_normal((rows, columns), dtype=np.float32)
    backend = NativeBackend(isa=isa, threads=2)
    assert same_bits(backend.linear(x, backend.prepare({"w": weight})["w"]), expected(x, weight, None, isa))


def test_the_longest_int8_row() -> None:
    """131,072 columns of the largest products fit an int32; one more is refused."""
    most = 1 << 17
    weight = Int8Tensor((1, most), np.full((1, most), -128, np.int8), np.ones(1, np.float32))
    x = np.ones((1, most), np.float32)
    for isa in ISAS:
        backend = NativeBackend(isa=isa, threads=1)
        assert same_bits(backend.linear(x, backend.prepare({"w": weight})["w"]), expected(x, weight, None, isa))
        longer = Int8Tensor((1, most + 1), np.zeros((1, most + 1), np.int8), np.ones(1, np.float32))
        with pytest.raises(ShapeError, match=r"131073 columns; expected at most 131072"):
            backend.prepare({"w": longer})


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
def test_extreme_activations(isa: str, format: str) -> None:
    """A block of zeros, tiny and huge numbers; NaN and Inf spoil their own row and no other; weights at the ends of int8."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((8, 96), dtype=np.float32)
    x[0] = 0
    x[1, :32] = 0
    x[2] *= 1e-38
    x[3] *= 1e-30
    x[4, 5], x[5, 40], x[6, 95] = np.nan, np.inf, -np.inf
    x[7] = np.where(x[7] > 0, 3e38, -3e38)
    weight = weight_of(format, rng, 20, 96)
    if format == "Q8_0":
        blocks = weight.data.copy().reshape(20, 3, 34)
        blocks[:5, :, 2:] = 128  # -128: no quantizer makes it, a file may hold it
        weight = QuantizedTensor("Q8_0", (20, 96), blocks.reshape(20, -1))
    backend = NativeBackend(isa=isa, threads=1)
    with np.errstate(over="ignore", invalid="ignore"):
        got, want = backend.linear(x, backend.prepare({"w": weight})["w"]), expected(x, weight, None, isa)
    assert same_bits(got, want)
    assert np.isnan(got[4:7]).all()
    assert np.isfinite(got[:4]).all()
    assert not got[0].any()


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 40),
    outputs=st.integers(1, 70),
    blocks=st.integers(1, 5),
    threads=st.integers(1, 4),
)
def test_a_row_has_the_same_bits_in_any_batch(format: str, seed: int, rows: int, outputs: int, blocks: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    weight, x = weight_of(format, rng, outputs, 32 * blocks), rng.standard_normal((rows, 32 * blocks), dtype=np.float32)
    for isa in ISAS:
        backend, alone = NativeBackend(isa=isa, threads=threads), NativeBackend(isa=isa, threads=1)
        packed = backend.prepare({"w": weight})["w"]
        together, row = backend.linear(x, packed), int(rng.integers(rows))
        assert np.array_equal(together[row : row + 1], alone.linear(np.ascontiguousarray(x[row : row + 1]), packed))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_a_packed_matrix_are_its_expansion(isa: str, format: str) -> None:
    """What the embedding looks up, bit for bit."""
    weight, backend = weight_of(format, np.random.default_rng(5), 37, 96), NativeBackend(isa=isa, threads=2)
    rows = np.array([36, 0, 5], np.int64)
    assert np.array_equal(backend.embedding(rows, backend.prepare({"w": weight})["w"]), weight.dequantize()[rows])
