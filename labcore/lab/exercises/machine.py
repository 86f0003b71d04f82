"""Checks on the machine: the engine's counts and `Ceilings` say what is right.

>>> check_floor(lambda weight_bytes, kv_bytes_per_token, batch, context, bandwidth: None).right
False
"""

from __future__ import annotations

from math import isclose

from labcore.bench.ceilings import Ceilings
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike


def _ceilings(bandwidth: float, rate: float) -> Ceilings:
    return Ceilings(threads=1, read=bandwidth, copy=bandwidth, multiply_adds=rate, int8_dots=None, measured_by="the exercise")


def check_floor(answer: Answer) -> Verdict:
    """answer(weight_bytes, kv_bytes_per_token, batch, context, bandwidth): least seconds of a decode step bound by reading."""
    cases = [(100, 2, 1, 0, 50), (100, 2, 1, 25, 50), (100, 2, 8, 25, 50), (96_576_768, 46_080, 1, 4096, 20_000_000_000)]

    def fault(got: object, weights: int, kv: int, batch: int, context: int, bandwidth: int) -> str:
        right = _ceilings(bandwidth, 1e30).floor(bytes=weights + batch * context * kv)
        good = isinstance(got, int | float) and isclose(got, right, rel_tol=1e-9)
        return "" if good else f"your function says {got!r}, the roofline {right!r} s"

    return judge(answer, named("weight_bytes, kv_bytes_per_token, batch, context, bandwidth", *cases), fault, "the roofline")


def check_crossover(answer: Answer) -> Verdict:
    """answer(num_weights, bytes_per_weight, bandwidth, rate): the first batch whose arithmetic takes longer than its weights."""
    cases = [(1000, 4, 10, 100), (1000, 1, 10, 100), (576 * 1536, 4, 20 * 10**9, 300 * 10**9), (10, 2, 1, 1), (7, 4, 30, 80)]
    wrong = unlike(_crossover, "step by step it is", "sequences")
    return judge(answer, named("num_weights, bytes_per_weight, bandwidth, rate", *cases), wrong, "the roofline")


def _crossover(num_weights: int, bytes_per_weight: int, bandwidth: int, rate: int) -> int:
    """Batch by batch, in whole numbers: 2 operations for a weight and a sequence."""
    batch = 1
    while 2 * num_weights * batch * bandwidth <= num_weights * bytes_per_weight * rate:
        batch += 1
    return batch
