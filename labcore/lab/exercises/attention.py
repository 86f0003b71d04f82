"""Checks on attention in tiles: the teaching versions of `labcore.kernels.attention` say what is right.

>>> check_merge(lambda a, b: None).right
False
"""

from __future__ import annotations

import numpy as np

from labcore.kernels.attention import Running, tiles, walk
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike


def check_merge(answer: Answer) -> Verdict:
    """answer(a, b): what is kept (largest, total, weighted) after the keys of a and those of b, as a tuple or a `Running`."""
    cases = {}
    for seed, (queries, keys, size) in enumerate([(1, 2, 1), (1, 8, 3), (4, 50, 1), (3, 9, 100)]):
        rng = np.random.default_rng(seed)
        scores, values = size * rng.standard_normal((queries, keys)), rng.standard_normal((keys, 5))
        nothing, half = Running.empty(np.zeros((queries, 1)), 5), keys // 2
        halves = nothing.with_tile(scores[:, :half], values[:half]), nothing.with_tile(scores[:, half:], values[half:])
        cases[f"{keys} keys in two halves, {queries} queries"] = (*halves, nothing.with_tile(scores, values))

    def fault(got: object, a: Running, b: Running, whole: Running) -> str:
        parts = [got.largest, got.total, got.weighted] if isinstance(got, Running) else got
        if not isinstance(parts, list | tuple) or len(parts) != 3:
            return f"your function returned {type(got).__name__}; expected three arrays: largest, total, weighted"
        for name, part in zip(("largest", "total", "weighted"), parts, strict=True):
            right = getattr(whole, name)
            if np.shape(part) != right.shape or not np.allclose(part, right, rtol=1e-9, atol=0):
                return f"{name} is not what one walk over all keys keeps"
        return ""

    return judge(lambda a, b, whole: answer(a, b), cases, fault, "one walk over all keys")


def check_tiles(answer: Answer) -> Verdict:
    """answer(num_tokens, tile): tiles of scores that causal attention computes, a block of queries being as large."""
    cases = [(4, 4), (8, 4), (9, 4), (1, 64), (100, 7), (512, 64)]
    return judge(answer, named("num_tokens, tile", *cases), unlike(_tiles, "the walk met", "tiles"), "the walk")


def _tiles(num_tokens: int, tile: int) -> int:
    x = np.zeros((num_tokens, 1))
    return sum(sum(1 for _ in walk(x[start:end], x[:end], x[:end], tile=tile)) for start, end in tiles(num_tokens, tile))
