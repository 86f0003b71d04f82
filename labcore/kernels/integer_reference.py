"""The arithmetic of the integer products, to the bit, in numpy: what the C++ kernels are tested against.

A row of activations becomes int8 on the fly, in blocks of 32 for the block formats or as a whole row for int8 weights.
The products of a block are summed as integers, exactly, in any order; only the sum over blocks is floating point, and it
is one chain in the order of the blocks, which begins at the bias. So a result depends on its own row and output alone.

    block formats   acc = fma(float(i), d_w * d_x, acc), block by block; Q4_1 then acc = fma(m_w, s, acc)
    int8            out = fma(float(i), d_w[n] * d_x, bias), i over the whole row
    i = sum of q_w * q_x,  s = d_x * float(sum of q_x)

`fused` says how a * b + c is rounded: once, as the SIMD variants do, or twice (product, then sum), as the plain one does.
Limits: slow, a loop over blocks in Python; rows of at most 131,072 columns for int8 (the sum then fits an int32).

    >>> linear_blocks(x, QuantizedTensor("Q4_1", (N, K), data), bias=None, fused=True).shape   # x: float32 (T, K)
    (T, N)
"""

from __future__ import annotations

import numpy as np

from labcore.core.errors import ShapeError
from labcore.quant.gguf_blocks import FORMATS, unpack
from labcore.quant.int8 import Int8Tensor, quantize_rows
from labcore.quant.quantized_tensor import QuantizedTensor

MAX_COLUMNS = 1 << 17
SCALE_BYTES = 4  # a float32 behind the quants of each (token, kv head)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in float32, rounded once.

    The product of two float32 is exact in float64 (24 + 24 bits of 53). The sum there may round, and rounding it again to
    float32 could break a tie the wrong way. So the sum is rounded to odd: where it was inexact and its last bit is 0, it
    moves one step towards what was lost. With 29 bits to spare the second rounding then sees on which side of a tie the
    exact value lies (Boldo & Melquiond 2008). What was lost is the error term of Knuth's two-sum, which is exact.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf in the error term; a float32 result may be infinite
        product, addend = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
        total = product + addend
        back = total - product
        lost = (product - (total - back)) + (addend - back)
        inexact = np.isfinite(total) & (lost != 0) & (total.view(np.int64) % 2 == 0)
        return np.where(inexact, np.nextafter(total, np.copysign(np.inf, lost)), total).astype(np.float32)


def multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c in float32, rounded twice."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(a, np.float32) * np.asarray(b, np.float32) + np.asarray(c, np.float32)


def linear_blocks(x: np.ndarray, weight: QuantizedTensor, bias: np.ndarray | None = None, *, fused: bool = True) -> np.ndarray:
    """x float32 (T, K) times weight (N, K) transposed, plus bias (N,) -> float32 (T, N)."""
    acc = _start(x, weight.shape, bias)
    add, size = fma if fused else multiply_add, FORMATS[weight.format].elements
    q_w, d_w, m_w = unpack(weight.format, weight.data)  # (N, blocks, 32), (N, blocks, 1), (N, blocks, 1)
    q_x, d_x = quantize_rows(np.reshape(x, (len(x), -1, size)))  # (T, blocks, 32), (T, blocks)
    s = d_x * q_x.sum(axis=-1).astype(np.float32)
    for b in range(q_w.shape[1]):
        acc = add(_integer_product(q_x[:, b], q_w[:, b]), _scales(d_x[:, b], d_w[:, b, 0]), acc)
        if weight.format == "Q4_1":
            acc = add(m_w[None, :, b, 0], s[:, b, None], acc)
    return acc


def linear_int8(x: np.ndarray, weight: Int8Tensor, bias: np.ndarray | None = None, *, fused: bool = True) -> np.ndarray:
    """x float32 (T, K) times weight (N, K) transposed, plus bias (N,) -> float32 (T, N). K is at most 131,072."""
    acc = _start(x, weight.shape, bias)
    if weight.shape[1] > MAX_COLUMNS:
        raise ShapeError(f"an int8 row has {weight.shape[1]} columns; expected at most {MAX_COLUMNS}: the sum must fit an int32")
    q_x, d_x = quantize_rows(x)
    return (fma if fused else multiply_add)(_integer_product(q_x, weight.data), _scales(d_x, weight.scales), acc)


def quantize_kv(x: np.ndarray) -> np.ndarray:
    """float32 (..., head_dim) -> int8 (..., head_dim + 4): the quants, then the bytes of their float32 scale, native order."""
    quants, scales = quantize_rows(x)
    return np.concatenate([quants, scales[..., None].view(np.int8)], axis=-1)


def expand_kv(pool: np.ndarray) -> np.ndarray:
    """int8 (..., head_dim + 4) -> float32 (..., head_dim)."""
    scales = np.ascontiguousarray(pool[..., -SCALE_BYTES:]).view(np.float32)  # (..., 1)
    return pool[..., :-SCALE_BYTES] * scales


def _start(x: np.ndarray, shape: tuple[int, int], bias: np.ndarray | None) -> np.ndarray:
    """Where the chains begin, float32 (T, N)."""
    if x.ndim != 2 or x.shape[1] != shape[1]:
        raise ShapeError(f"x has shape {x.shape}; expected (tokens, {shape[1]})")
    if bias is not None and bias.shape != shape[:1]:
        raise ShapeError(f"bias has shape {bias.shape}; expected {shape[:1]}")
    start = np.zeros(shape[0], np.float32) if bias is None else bias.astype(np.float32)
    return np.tile(start, (len(x), 1))  # a bias of -0.0 stays one


def _integer_product(q_x: np.ndarray, q_w: np.ndarray) -> np.ndarray:
    """The exact integers q_x (T, K) . q_w (N, K), rounded to float32 (T, N). In float64 every partial sum is exact (< 2^53)."""
    return (q_x.astype(np.float64) @ q_w.T.astype(np.float64)).astype(np.float32)


def _scales(d_x: np.ndarray, d_w: np.ndarray) -> np.ndarray:
    """d_w * d_x, float32 (T, N)."""
    with np.errstate(over="ignore", invalid="ignore"):
        return d_x[:, None] * d_w[None]
