"""The teaching versions of attention are torch's attention, for every tile; and the tiled one keeps no matrix."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labcore.core.errors import InvalidConfig, ShapeError
from labcore.kernels.attention import Running, naive, naive_numbers, tiled, tiled_numbers, walk


def random_qkv(seed: int, *shape: int, num_keys: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    keys = (*shape[:-2], num_keys or shape[-2], shape[-1])
    return rng.standard_normal(shape), rng.standard_normal(keys), rng.standard_normal(keys)


def by_torch(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = True) -> np.ndarray:
    """torch's scaled_dot_product_attention in float64; its causal mask stands at the first keys, so it is given ours."""
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(k.shape[-2] - q.shape[-2]) if causal else None
    return torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), attn_mask=mask).numpy()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", [(3, 17, 8), (1, 1, 4), (2, 64, 16), (5, 2)], ids=str)
def test_all_tiles_give_what_torch_gives(shape: tuple[int, ...], causal: bool) -> None:
    q, k, v = random_qkv(1, *shape)
    want = by_torch(q, k, v, causal)
    assert np.allclose(naive(q, k, v, causal=causal), want, rtol=0, atol=1e-13)
    for tile in range(1, shape[-2] + 2):
        assert np.allclose(tiled(q, k, v, tile=tile, causal=causal), want, rtol=0, atol=1e-13), tile


@given(
    num_queries=st.integers(1, 20), more_keys=st.integers(0, 30), head_dim=st.integers(1, 9), tile=st.integers(1, 60),
    size=st.sampled_from([0.0, 1.0, 1e3]), seed=st.integers(0, 99),
)  # fmt: skip
def test_queries_at_the_end_of_more_keys(
    num_queries: int, more_keys: int, head_dim: int, tile: int, size: float, seed: int
) -> None:
    """Decode and chunks: the queries are the last positions. Scores of any size: the largest is subtracted in time."""
    q, k, v = random_qkv(seed, 2, num_queries, head_dim, num_keys=num_queries + more_keys)
    want = by_torch(q * size, k, v)
    assert np.allclose(naive(q * size, k, v), want, rtol=1e-9, atol=1e-9)
    assert np.allclose(tiled(q * size, k, v, tile=tile), want, rtol=1e-9, atol=1e-9)


def test_float32_stays_float32_and_scores_of_a_thousand_do_not_overflow() -> None:
    q, k, v = (x.astype(np.float32) for x in random_qkv(2, 2, 40, 8))
    got = tiled(q * 1000, k, v, tile=7)
    assert got.dtype == naive(q, k, v).dtype == np.float32
    assert np.allclose(got, by_torch(*(x.astype(np.float64) for x in (q * 1000, k, v))), atol=1e-3)


def test_later_keys_do_not_reach_a_query() -> None:
    q, k, v = random_qkv(3, 1, 12, 4)
    before = tiled(q, k, v, tile=5)
    k[:, 8:], v[:, 8:] = 1e6, -1e6
    assert np.array_equal(tiled(q, k, v, tile=5)[:, :5], before[:, :5])
    assert not np.allclose(tiled(q, k, v, tile=5)[:, 8:], before[:, 8:])


def test_after_each_tile_what_is_kept_is_the_attention_of_the_keys_so_far() -> None:
    q, k, v = random_qkv(4, 3, 1, 8, num_keys=20)
    ends = []
    for start, end, running in walk(q, k, v, tile=6):
        scores = q @ np.swapaxes(k[:, :end], -1, -2) / 8**0.5
        assert np.allclose(running.largest, scores.max(axis=-1, keepdims=True))
        assert np.allclose(running.total, np.exp(scores - running.largest).sum(axis=-1, keepdims=True))
        assert np.allclose(running.result(), by_torch(q, k[:, :end], v[:, :end]))
        ends.append((start, end))
    assert ends == [(0, 6), (6, 12), (12, 18), (18, 20)]


def test_a_first_tile_that_nobody_sees_is_the_case_to_avoid() -> None:
    """-inf - -inf is a NaN that no later tile can heal: the reason for the order of tiles in `tiled`."""
    q, values = np.ones((1, 2)), np.ones((3, 2))
    with np.errstate(invalid="ignore"):
        running = Running.empty(q, 2).with_tile(np.full((1, 3), -np.inf), values).with_tile(np.zeros((1, 3)), values)
    assert np.isnan(running.result()).all()
    running = Running.empty(q, 2).with_tile(np.zeros((1, 3)), values).with_tile(np.full((1, 3), -np.inf), values)
    assert np.array_equal(running.result(), [[1.0, 1.0]])


def peak_bytes(call: object) -> int:
    tracemalloc.start()
    try:
        call()  # type: ignore[operator]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_naive_version_keeps_a_square_and_the_tiled_one_does_not() -> None:
    """numpy tells its allocations: doubling the length takes four times the memory, or hardly more than the larger result."""
    short, long = random_qkv(5, 1, 512, 8), random_qkv(5, 1, 1024, 8)
    assert peak_bytes(lambda: naive(*short)) >= 8 * naive_numbers(512, 512)
    assert 3.5 < peak_bytes(lambda: naive(*long)) / peak_bytes(lambda: naive(*short)) < 4.5
    result = 8 * 512 * 8
    growth = peak_bytes(lambda: tiled(*long, tile=32)) - peak_bytes(lambda: tiled(*short, tile=32))
    assert growth < 2 * result
    assert peak_bytes(lambda: tiled(*long, tile=32)) < 2 * result + 8 * 8 * tiled_numbers(1024, 1024, 8, 32)


def test_numbers_that_must_be_kept() -> None:
    assert naive_numbers(100, 200) == 20_000
    assert tiled_numbers(100, 200, 64, 16) == 16 * 16 + 16 * 66
    assert tiled_numbers(1, 200, 64, 16) == 16 + 66


@pytest.mark.parametrize(
    ("q", "k", "v", "says"),
    [
        ((2, 3, 4), (2, 3, 5), (2, 3, 4), "same heads and head_dim"),
        ((2, 3, 4), (1, 3, 4), (1, 3, 4), "same heads and head_dim"),
        ((2, 3, 4), (2, 3, 4), (2, 4, 4), "as many values as keys"),
        ((4,), (4,), (4,), "heads, tokens, head_dim"),
        ((2, 0, 4), (2, 3, 4), (2, 3, 4), "0 queries"),
        ((2, 5, 4), (2, 3, 4), (2, 3, 4), "no more queries than keys"),
    ],
)
def test_wrong_shapes_are_named(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], says: str) -> None:
    for attention in (naive, tiled):
        with pytest.raises(ShapeError, match=says):
            attention(np.ones(q), np.ones(k), np.ones(v))


def test_a_tile_holds_at_least_one_key() -> None:
    with pytest.raises(InvalidConfig, match="tile is 0"):
        tiled(*random_qkv(0, 1, 3, 2), tile=0)
    with pytest.raises(InvalidConfig, match="tile is -1"):
        next(walk(*random_qkv(0, 1, 3, 2), tile=-1))
