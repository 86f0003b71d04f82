"""The operators of a decoder at a size, with what each must move and compute at the least.

Shapes: `tokens` rows of `hidden` numbers, heads of 64 that share KV heads by fours, a feed-forward part three times as wide.
Bytes are those of arguments and results, each once; operations as in `core.operators`.

    >>> case = cases(tokens=512, hidden=512)["rms_norm"]
    >>> case.bytes                                 # 512 x 512 x 4, read and written
    2097152
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labcore.bench.attention import BLOCK_SIZE, scattered
from labcore.kernels.api import Array, Backend

EPS, HEAD_DIM, GROUP, VOCABULARY, WIDER = 1e-5, 64, 4, 8192, 3
Call = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operator. `call_on` brings its arguments onto a backend and returns the call, whose result `to_numpy` takes."""

    operator: str
    shape: str
    bytes: int
    flops: int
    call_on: Callable[[Backend], Call]


def bring(backend: Backend, array: np.ndarray) -> Array:
    """An array as the backend's own kind: names under "rope." are tables, which no backend packs."""
    return backend.prepare({"rope.array": array})["rope.array"]


def cases(tokens: int, hidden: int, seed: int = 0) -> dict[str, Case]:
    """Every operator at this size, by name. Attention asks for at most 2,048 tokens, products for at most 512."""
    rng = np.random.default_rng(seed)
    heads, kv_heads = hidden // HEAD_DIM, max(hidden // HEAD_DIM // GROUP, 1)
    num_asked, rows = min(tokens, 2048), min(tokens, 512)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    x, y, norm = normal(tokens, hidden), normal(tokens, hidden), normal(hidden)
    table, matrix = normal(VOCABULARY, hidden), normal(WIDER * hidden, hidden)
    q, kv = normal(num_asked, heads, HEAD_DIM), normal(2, num_asked, kv_heads, HEAD_DIM)
    ids, positions = rng.integers(0, VOCABULARY, tokens), np.arange(tokens)
    angles = rng.random((tokens, HEAD_DIM // 2)).astype(np.float32)
    batch = scattered(num_asked, num_asked)
    num_blocks = -(-num_asked // BLOCK_SIZE)

    def embedding(ops: Backend) -> Call:
        weight = ops.prepare({"embedding": table})["embedding"]
        return lambda: ops.embedding(ids, weight)

    def rms_norm(ops: Backend) -> Call:
        a, w = bring(ops, x), bring(ops, norm)
        return lambda: ops.rms_norm(a, w, EPS)

    def add_rms_norm(ops: Backend) -> Call:
        a, b, w = bring(ops, x), bring(ops, y), bring(ops, norm)
        return lambda: ops.add_rms_norm(a, b, w, EPS)[0]

    def linear(ops: Backend) -> Call:
        a, w = bring(ops, x[:rows]), ops.prepare({"matrix": matrix})["matrix"]
        return lambda: ops.linear(a, w)

    def rope(ops: Backend) -> Call:
        a, cos, sin = bring(ops, x.reshape(tokens, heads, HEAD_DIM)), bring(ops, np.cos(angles)), bring(ops, np.sin(angles))
        return lambda: ops.rope(a, positions, cos, sin)

    def pool(ops: Backend) -> tuple[Array, Array, Array]:
        return bring(ops, kv[0]), bring(ops, kv[1]), ops.new_kv_cache((1, 2, num_blocks, kv_heads, BLOCK_SIZE, HEAD_DIM))[0]

    def store_kv(ops: Backend) -> Call:
        k, v, cache = pool(ops)

        def call() -> Array:
            ops.store_kv(k, v, cache, batch.slot_mapping)
            return cache

        return call

    def paged_attention(ops: Backend) -> Call:
        k, v, cache = pool(ops)
        ops.store_kv(k, v, cache, batch.slot_mapping)
        queries = bring(ops, q)
        return lambda: ops.paged_attention(queries, cache, batch, HEAD_DIM**-0.5)

    def silu_and_mul(ops: Backend) -> Call:
        a, b = bring(ops, x), bring(ops, y)
        return lambda: ops.silu_and_mul(a, b)

    n, plain = x.size, f"{tokens} x {hidden}"
    asked, pages = f"{num_asked} x {heads} x {HEAD_DIM}", 4 * kv.size
    seen = num_asked * (num_asked + 1) // 2
    product = f"{rows} x {hidden} x {WIDER * hidden}"
    all_cases = (
        Case(operator="embedding", shape=plain, bytes=8 * n, flops=0, call_on=embedding),
        Case(operator="rms_norm", shape=plain, bytes=8 * n, flops=4 * n, call_on=rms_norm),
        Case(operator="add_rms_norm", shape=plain, bytes=16 * n, flops=5 * n, call_on=add_rms_norm),
        Case(
            operator="linear",
            shape=product,
            bytes=4 * (rows * hidden + matrix.size + rows * WIDER * hidden),
            flops=2 * rows * matrix.size,
            call_on=linear,
        ),
        Case(operator="rope", shape=f"{tokens} x {heads} x {HEAD_DIM}", bytes=8 * (n + angles.size), flops=3 * n, call_on=rope),
        Case(operator="store_kv", shape=f"2 x {num_asked} x {kv_heads} x {HEAD_DIM}", bytes=2 * pages, flops=0, call_on=store_kv),
        Case(
            operator="paged_attention",
            shape=asked,
            bytes=8 * q.size + pages,
            flops=4 * heads * HEAD_DIM * seen,
            call_on=paged_attention,
        ),
        Case(operator="silu_and_mul", shape=plain, bytes=12 * n, flops=5 * n, call_on=silu_and_mul),
    )
    return {case.operator: case for case in all_cases}
