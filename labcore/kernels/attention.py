"""Attention without the matrix of scores, in numpy: the teaching versions behind the paged kernels.

The naive version writes down a score for each pair of query and key, which takes memory that grows with the square of the
length. The tiled one looks at a tile of keys at a time and keeps three things for each query: the largest score so far, the
sum of e^(score - largest) and the sum of the values weighted by it. When a tile brings a larger score, what was summed before
is scaled down. The result is the same softmax, not an approximation. Sources: Milakov & Gimelshein 2018 (the running sum),
Rabe & Staats 2021, Dao et al. 2022 (FlashAttention).

Arrays are (heads, tokens, head_dim), every head with its own keys and values; one head may come as (tokens, head_dim). Limits:
no paging and no grouped heads (`paged_attention` has both), one thread.

    >>> q = k = v = np.eye(4)
    >>> bool(np.allclose(tiled(q, k, v, tile=3), naive(q, k, v)))
    True
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labcore.core.errors import InvalidConfig, ShapeError


def naive(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool = True) -> np.ndarray:
    """softmax(q k^T / sqrt(head_dim)) v with all scores at once. q (..., T, d), k, v (..., S, d) -> (..., T, d).

    causal: the queries are the last T of S positions, and each sees the keys up to its own. Raises ShapeError.
    """
    _check(q, k, v, causal)
    scores = q @ np.swapaxes(k, -1, -2) * _scale(q)  # (..., T, S): the matrix
    if causal:
        scores = np.where(_visible(q, k, 0, k.shape[-2]), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


@dataclass(frozen=True, slots=True)
class Running:
    """What an online softmax keeps for each query: `largest` and `total` (..., T, 1), `weighted` (..., T, d)."""

    largest: np.ndarray
    total: np.ndarray
    weighted: np.ndarray

    @classmethod
    def empty(cls, q: np.ndarray, head_dim: int) -> Running:
        """Before the first tile: no score yet, sums of nothing."""
        one = (*q.shape[:-1], 1)
        return cls(np.full(one, -np.inf, q.dtype), np.zeros(one, q.dtype), np.zeros((*q.shape[:-1], head_dim), q.dtype))

    def with_tile(self, scores: np.ndarray, values: np.ndarray) -> Running:
        """After a tile: scores (..., T, tile), values (..., tile, d). -inf is a key that is not seen; each query has seen one."""
        largest = np.maximum(self.largest, scores.max(axis=-1, keepdims=True))
        kept = np.exp(
            self.largest - largest
        )  # what the sums so far are scaled by: 1 where the largest stays, 0 at the first tile
        weights = np.exp(scores - largest)
        return Running(largest, self.total * kept + weights.sum(axis=-1, keepdims=True), self.weighted * kept + weights @ values)

    def result(self) -> np.ndarray:
        """The attention of all keys that were seen, (..., T, d)."""
        return self.weighted / self.total


def tiles(num_keys: int, tile: int) -> Iterator[tuple[int, int]]:
    """Start and end of each tile, in order; the last may be short."""
    for start in range(0, num_keys, tile):
        yield start, min(start + tile, num_keys)


def walk(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, tile: int, causal: bool = True) -> Iterator[tuple[int, int, Running]]:
    """The tiles in order, each with what is kept after it. Tiles that no query sees are left out."""
    _check(q, k, v, causal)
    if tile < 1:
        raise InvalidConfig(f"tile is {tile}; expected the number of keys in a tile, 1 or more")
    running = Running.empty(q, v.shape[-1])
    for start, end in tiles(k.shape[-2], tile):
        scores = q @ np.swapaxes(k[..., start:end, :], -1, -2) * _scale(q)  # (..., T, tile)
        if causal:
            scores = np.where(_visible(q, k, start, end), scores, -np.inf)
        running = running.with_tile(scores, v[..., start:end, :])
        yield start, end, running


def tiled(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, tile: int = 64, causal: bool = True) -> np.ndarray:
    """The same as `naive`, with `tile` queries and `tile` keys at a time: no more than tile x tile scores are alive, by head.

    A block of queries meets the tiles up to its own last position, so the key at position 0 comes first and every query sees it:
    the largest score is finite from the first tile on. Raises ShapeError, InvalidConfig.
    """
    _check(q, k, v, causal)
    if tile < 1:
        raise InvalidConfig(f"tile is {tile}; expected the number of keys in a tile, 1 or more")
    num_queries, num_keys = q.shape[-2], k.shape[-2]
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    for start, end in tiles(num_queries, tile):
        seen = num_keys - num_queries + end if causal else num_keys
        steps = walk(q[..., start:end, :], k[..., :seen, :], v[..., :seen, :], tile=tile, causal=causal)
        *_, running = deque(steps, maxlen=1).pop()
        out[..., start:end, :] = running.result()
    return out


def naive_numbers(num_queries: int, num_keys: int) -> int:
    """Numbers that `naive` must keep for one head beyond arguments and result: a score for each pair."""
    return num_queries * num_keys


def tiled_numbers(num_queries: int, num_keys: int, head_dim: int, tile: int) -> int:
    """Numbers that `tiled` must keep for one head: a tile of scores; for each query of a block, two numbers and a row of sums."""
    rows = min(tile, num_queries)
    return rows * min(tile, num_keys) + rows * (2 + head_dim)


def _scale(q: np.ndarray) -> np.floating:
    return q.dtype.type(q.shape[-1] ** -0.5)


def _visible(q: np.ndarray, k: np.ndarray, start: int, end: int) -> np.ndarray:
    """Whether a query sees the keys start to end - 1, (T, end - start)."""
    positions = np.arange(k.shape[-2] - q.shape[-2], k.shape[-2])
    return np.arange(start, end) <= positions[:, None]


def _check(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> None:
    if q.ndim not in (2, 3) or k.shape != (*q.shape[:-2], k.shape[-2], q.shape[-1]) or v.shape[:-1] != k.shape[:-1]:
        raise ShapeError(
            f"attention: q has shape {q.shape}, k {k.shape}, v {v.shape}; expected (heads, tokens, head_dim) "
            "or (tokens, head_dim) for each, with the same heads and head_dim, and as many values as keys"
        )
    if not q.shape[-2] or not k.shape[-2] or (causal and q.shape[-2] > k.shape[-2]):
        raise ShapeError(
            f"attention: {q.shape[-2]} queries and {k.shape[-2]} keys; expected at least one of each, and in the causal case "
            "no more queries than keys: they are the last positions"
        )
