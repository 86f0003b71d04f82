"""The integer reference against exact fractions, and against the float64 product of what it quantized."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labcore.core.errors import ShapeError
from labcore.kernels.integer_reference import expand_kv, fma, linear_blocks, linear_int8, multiply_add, quantize_kv
from labcore.quant.int8 import TINY, Int8Tensor, quantize_int8, quantize_rows
from labcore.quant.quantize import quantize

F32 = np.float32
MAX, LEAST = np.finfo(F32).max, np.finfo(F32).smallest_subnormal
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
FORMATS = ["Q8_0", "Q4_0", "Q4_1"]


def rounded(value: Fraction) -> np.float32:
    """The nearest float32 to an exact value, ties to even: by comparing distances, not by casting."""
    if abs(value) >= Fraction(float(MAX)) + Fraction(2) ** 103:
        return F32(np.inf if value > 0 else -np.inf)
    guess = F32(float(value))
    near = [g for g in (np.nextafter(guess, F32(-np.inf)), guess, np.nextafter(guess, F32(np.inf))) if np.isfinite(g)]
    distances = [abs(Fraction(float(g)) - value) for g in near]
    best = [g for g, distance in zip(near, distances, strict=True) if distance == min(distances)]
    return next((g for g in best if g.view(np.uint32) % 2 == 0), best[0])


def check(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    with np.errstate(over="ignore"):
        got = fma(F32([a]), F32([b]), F32([c]))[0]
        assert got == rounded(exact), (a, b, c)


@given(floats, floats, floats)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    check(a, b, c)


@given(st.integers(1, 1 << 24), st.integers(1, 1 << 24), st.integers(-60, 60), st.integers(0, 1 << 25), st.sampled_from([-1, 1]))
def test_fma_rounds_once_near_ties(a: int, b: int, exponent: int, c: int, sign: int) -> None:
    """Products of full width beside addends of nearby size: the last bit of the float64 sum is in doubt."""
    scale = float(F32(2.0**exponent))
    check(float(F32(a)) * 2.0**-24, float(F32(b)) * 2.0**-24, sign * float(F32(c * scale)))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("high", [1.0, 1 + 2.0**-23, 1 + 2.0**-22, 2 - 2.0**-23, 2.0])
def test_almost_a_tie(high: float, sign: int) -> None:
    """2^-24 (1 - 2^-46) is half an ulp of the addend, less what float64 loses: a sum that is no tie looks like one."""
    a, b = 1 - 2.0**-23, 2.0**-24 * (1 + 2.0**-23)
    for c in (high, -high):
        check(sign * a, b, c)
        check(sign, 2.0**-24, c)  # a tie indeed


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("low", [0.0, 2.0**-50, 2.0**-60, 2.0**-100, -(2.0**-50), -(2.0**-60), -(2.0**-100), LEAST, -LEAST])
def test_a_product_that_ends_in_half_an_ulp_and_a_little(low: float, sign: int) -> None:
    """(1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, a tie in float32 that the addend breaks."""
    check(sign * (1 + 2.0**-12), 1 + 2.0**-12, float(low))


def test_the_plain_cast_would_fail_these_ties() -> None:
    """The tests above can fail: without the rounding to odd, a tie plus a little goes to even."""
    a, c = F32(1 + 2.0**-12), F32(2.0**-100)
    assert F32(float(a) * float(a) + float(c)) != fma(a, a, c) == F32(1 + 2.0**-11 + 2.0**-23)
    assert multiply_add(a, a, c) == F32(1 + 2.0**-11)


def test_fma_at_the_edges() -> None:
    inf, nan = F32(np.inf), F32(np.nan)
    cases = [
        (MAX, MAX, -MAX, inf),
        (MAX, 2, -MAX, MAX),
        (LEAST, 0.5, LEAST, LEAST * 2),  # ties, to even
        (LEAST, 0.5, 0, 0),
        (inf, 1, 1, inf),
        (1, 1, -inf, -inf),
        (-0.0, 1, -0.0, -0.0),
    ]
    for a, b, c, want in cases:
        with np.errstate(over="ignore"):
            got = fma(F32([a]), F32([b]), F32([c]))[0]
        assert got.view(np.uint32) == F32(want).view(np.uint32), (a, b, c)
    for a, b, c in [(inf, F32(0), F32(1)), (inf, F32(1), -inf), (nan, F32(1), F32(1)), (F32(1), F32(1), nan)]:
        assert np.isnan(fma(a, b, c)) and np.isnan(multiply_add(a, b, c))


@given(st.lists(floats, min_size=1, max_size=40))
def test_rows_come_back_within_half_a_step(values: list[float]) -> None:
    x = np.array(values, F32)
    quants, scale = quantize_rows(x)
    assert quants.dtype == np.int8 and np.abs(quants.astype(int)).max() <= 127
    amax = np.abs(x).max()
    if amax < TINY:
        assert scale == 0 and not quants.any()
    else:
        assert scale == amax / F32(127) and np.abs(quants.astype(int)).max() == 127
        assert np.abs(quants * float(scale) - x).max() <= float(scale) * (0.5 + 1e-4)


def test_ties_go_to_even() -> None:
    quants, scale = quantize_rows(F32([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]))
    assert scale == 1 and quants.tolist() == [127, 0, 2, 2, 0, -2, -2, 126]


def test_zeros_tiny_and_broken_rows() -> None:
    below = np.nextafter(TINY, F32(0))
    x = F32([[0, 0], [-0.0, 0], [LEAST, -LEAST], [below, 0], [TINY, 0], [np.nan, 1], [1, np.inf], [-np.inf, np.nan]])
    quants, scales = quantize_rows(x)
    assert scales[:4].tolist() == [0] * 4 and not quants[:4].any()
    assert scales[4] == TINY / F32(127) and quants[4].tolist() == [127, 0]
    assert np.isnan(scales[5:]).all() and not quants[5:].any()


def step_by_step(x: np.ndarray, w: np.ndarray, d_w: np.ndarray, m_w: np.ndarray | None, bias: np.ndarray) -> np.ndarray:
    """The documented chain, element by element, in exact fractions rounded where the document says so."""
    out = np.empty((len(x), len(w)), F32)
    for t in range(len(x)):
        for n in range(len(w)):
            acc = F32(bias[n])
            for b in range(w.shape[1]):
                block = x[t, 32 * b : 32 * b + 32]
                amax = np.abs(block).max()
                d_x, q_x = amax / F32(127), np.rint(block * (F32(127) / amax)).astype(int)
                i = int(np.dot(w[n, b].astype(int), q_x))
                acc = rounded(i * Fraction(float(d_w[n, b] * d_x)) + Fraction(float(acc)))
                if m_w is not None:
                    acc = rounded(Fraction(float(m_w[n, b])) * Fraction(float(d_x * F32(q_x.sum()))) + Fraction(float(acc)))
            out[t, n] = acc
    return out


@pytest.mark.parametrize("format", FORMATS)
def test_block_products_are_the_documented_chain(format: str) -> None:
    from labcore.quant.gguf_blocks import unpack

    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((3, 96), F32), quantize(format, rng.standard_normal((4, 96), F32))
    bias = rng.standard_normal(4, F32)
    w, d_w, m_w = unpack(format, weight.data)
    want = step_by_step(x, w, d_w[..., 0], m_w[..., 0] if format == "Q4_1" else None, bias)
    assert np.array_equal(linear_blocks(x, weight, bias), want)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("format", [*FORMATS, "int8"])
def test_products_are_near_the_float64_product_of_the_quantized(format: str, fused: bool) -> None:
    """Only the order of the float sum and its rounding are left to differ: 1e-6, not the percents of quantization."""
    rng = np.random.default_rng(2)
    x, dense, bias = rng.standard_normal((5, 192), F32), rng.standard_normal((7, 192), F32), rng.standard_normal(7, F32)
    if format == "int8":
        weight, blocks = quantize_int8(dense), x
        got = linear_int8(x, weight, bias, fused=fused)
    else:
        weight, blocks = quantize(format, dense), x.reshape(5, 6, 32)
        got = linear_blocks(x, weight, bias, fused=fused)
    quants, scales = quantize_rows(blocks)
    seen = (quants * scales[..., None].astype(float)).reshape(5, 192)
    want = seen @ weight.dequantize().astype(float).T + bias
    assert got.dtype == F32 and np.abs(got - want).max() < 4e-6 * np.abs(want).max()


def test_a_row_does_not_know_its_mates() -> None:
    rng = np.random.default_rng(3)
    x, dense = rng.standard_normal((9, 64), F32), rng.standard_normal((6, 64), F32)
    blocks, whole = quantize("Q4_1", dense), quantize_int8(dense)
    for t in range(9):
        assert np.array_equal(linear_blocks(x, blocks)[t], linear_blocks(x[t : t + 1], blocks)[0])
        assert np.array_equal(linear_int8(x, whole)[t], linear_int8(x[t : t + 1], whole)[0])


@pytest.mark.parametrize("fused", [True, False])
def test_zeros_give_the_bias_and_a_nan_stays_in_its_row(fused: bool) -> None:
    rng = np.random.default_rng(4)
    x, bias = np.zeros((3, 64), F32), F32([1.5, -0.0, 0.0])
    x[1, 40] = np.nan
    for weight, linear in ((quantize("Q8_0", rng.standard_normal((3, 64), F32)), linear_blocks),
                           (quantize_int8(rng.standard_normal((3, 64), F32)), linear_int8)):  # fmt: skip
        out = linear(x, weight, bias, fused=fused)  # type: ignore[operator]
        assert np.array_equal(out[[0, 2]], np.stack([bias, bias])) and np.isnan(out[1]).all()


def test_the_longest_int8_row_is_exact() -> None:
    """131,072 products of 127 x -128: within an int32, and only then rounded to float32."""
    weight = Int8Tensor((1, 1 << 17), np.full((1, 1 << 17), -128, np.int8), np.ones(1, F32))
    x = np.full((1, 1 << 17), 127, F32)
    assert linear_int8(x, weight)[0, 0] == F32(-(1 << 17) * 127 * 128)
    with pytest.raises(ShapeError, match="at most 131072"):
        linear_int8(np.ones((1, (1 << 17) + 1), F32), quantize_int8(np.ones((1, (1 << 17) + 1), F32)))


def test_shapes_are_named() -> None:
    weight = quantize_int8(np.ones((3, 32), F32))
    with pytest.raises(ShapeError, match=r"x has shape \(2, 31\); expected \(tokens, 32\)"):
        linear_int8(np.ones((2, 31), F32), weight)
    with pytest.raises(ShapeError, match=r"bias has shape \(1,\); expected \(3,\)"):
        linear_int8(np.ones((2, 32), F32), weight, np.ones(1, F32))


def test_kv_goes_into_bytes_and_back() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4, 3, 64), F32) * F32([[[1e-3]], [[1]], [[1e4]], [[0]]])
    x[1, 2, 7] = np.nan
    stored = quantize_kv(x)
    assert stored.dtype == np.int8 and stored.shape == (4, 3, 68)
    quants, scales = quantize_rows(x)
    assert np.array_equal(stored[..., :64], quants) and stored[..., 64:].tobytes() == scales.tobytes()
    back = expand_kv(stored)
    assert back.dtype == F32 and np.isnan(back[1, 2]).all() and not back[3].any()
    assert np.array_equal(back[0], quants[0] * scales[0][:, None])
    assert np.array_equal(expand_kv(stored[1:2, :2]), back[1:2, :2])  # a part of a pool, not contiguous
