"""Five elementwise operators by everybody: this engine's C++, numpy in its plain form, numpy with `out=`, torch.

Results are written into arrays that are made once, wherever a contender can do that: allocation is a large part of the time of
a large result. numpy's plain form allocates; torch allocates in `rms_norm` and the rotation (see `torch_calls`).

    >>> sorted(contenders(64, 64, threads=1)["softmax"])[0]       # doctest: +SKIP
    'native'
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from labcore.bench.cases import EPS, HEAD_DIM
from labcore.core.errors import BackendUnavailable
from labcore.kernels.native import NativeBackend
from labcore.kernels.reference import ReferenceBackend

try:
    from labcore.bench import torch_calls
except ModuleNotFoundError:  # no torch
    torch_calls = None  # type: ignore[assignment]

Calls = dict[str, Callable[[], Any]]
NATIVE, PLAIN, IN_PLACE, TORCH = "native", "numpy", "numpy out=", "torch"


class Arguments:
    """x, y (tokens, hidden); weight (hidden,); heads: x as (tokens, heads, 64); cos, sin (tokens, 32); positions (tokens,)."""

    def __init__(self, tokens: int, hidden: int) -> None:
        rng = np.random.default_rng(0)
        self.x, self.y = rng.standard_normal((2, tokens, hidden), dtype=np.float32)
        self.heads = self.x.reshape(tokens, -1, HEAD_DIM)
        angles = rng.random((tokens, HEAD_DIM // 2)).astype(np.float32)
        self.weight = rng.random(hidden, dtype=np.float32)
        self.cos, self.sin, self.positions = np.cos(angles), np.sin(angles), np.arange(tokens)


def contenders(tokens: int, hidden: int, threads: int) -> dict[str, Calls]:
    """By operator, a call for each contender that there is. Every call returns its result, the norm of a pair."""
    a = Arguments(tokens, hidden)
    by_contender: dict[str, Mapping[str, Callable[[], Any]]] = {PLAIN: _plain(a), IN_PLACE: _in_place(a)}
    with contextlib.suppress(BackendUnavailable):
        by_contender = {NATIVE: native_calls(a, threads), **by_contender}
    if torch_calls is not None:
        torch_calls.use_threads(threads)
        by_contender[TORCH] = torch_calls.operators(a.x, a.y, a.weight, a.heads, a.cos, a.sin, EPS)
    return {name: {who: calls[name] for who, calls in by_contender.items() if name in calls} for name in _plain(a)}


def native_calls(a: Arguments, threads: int) -> Calls:
    """Raises BackendUnavailable."""
    operators = NativeBackend(threads=threads)._operators
    out, total, turned = np.zeros_like(a.x), np.zeros_like(a.x), np.zeros_like(a.heads)

    def returning(result: np.ndarray, operator: Callable[..., object], *arguments: Any) -> Callable[[], Any]:
        def call() -> np.ndarray:
            operator(*arguments)
            return result

        return call

    return {
        "rms_norm": returning(out, operators.rms_norm, out, a.x, a.weight, EPS),
        "add_rms_norm": returning(out, operators.add_rms_norm, out, total, a.x, a.y, a.weight, EPS),
        "rope": returning(turned, operators.rope, turned, a.heads, a.positions, a.cos, a.sin),
        "silu_and_mul": returning(out, operators.silu_and_mul, out, a.x, a.y),
        "softmax": returning(out, operators.softmax, out, a.x),
    }


def _plain(a: Arguments) -> Calls:
    ops = ReferenceBackend(np.float32)
    return {
        "rms_norm": lambda: ops.rms_norm(a.x, a.weight, EPS),
        "add_rms_norm": lambda: ops.add_rms_norm(a.x, a.y, a.weight, EPS)[0],
        "rope": lambda: ops.rope(a.heads, a.positions, a.cos, a.sin),
        "silu_and_mul": lambda: ops.silu_and_mul(a.x, a.y),
        "softmax": lambda: ops.softmax(a.x),
    }


def _in_place(a: Arguments) -> Calls:
    """numpy as well as it can be written: nothing is allocated that is as large as the arguments."""
    out, total, turned = np.zeros_like(a.x), np.zeros_like(a.x), np.zeros_like(a.heads)
    half, hidden = HEAD_DIM // 2, a.x.shape[-1]
    product = np.zeros((*a.heads.shape[:-1], half), np.float32)

    def norm(x: np.ndarray) -> np.ndarray:
        mean_square = np.einsum("ij,ij->i", x, x) / np.float32(hidden)
        np.multiply(x, (1 / np.sqrt(mean_square + np.float32(EPS)))[:, None], out=out)
        return np.multiply(out, a.weight, out=out)

    def rope() -> np.ndarray:
        x1, x2, c, s = a.heads[..., :half], a.heads[..., half:], a.cos[a.positions][:, None], a.sin[a.positions][:, None]
        np.multiply(x1, c, out=turned[..., :half])
        np.subtract(turned[..., :half], np.multiply(x2, s, out=product), out=turned[..., :half])
        np.multiply(x2, c, out=turned[..., half:])
        np.add(turned[..., half:], np.multiply(x1, s, out=product), out=turned[..., half:])
        return turned

    def silu_and_mul() -> np.ndarray:
        np.exp(np.negative(a.x, out=out), out=out)
        np.add(out, np.float32(1), out=out)
        return np.multiply(np.divide(a.x, out, out=out), a.y, out=out)

    def softmax() -> np.ndarray:
        np.exp(np.subtract(a.x, a.x.max(axis=-1, keepdims=True), out=out), out=out)
        return np.multiply(out, 1 / np.einsum("ij->i", out)[:, None], out=out)

    return {
        "rms_norm": lambda: norm(a.x),
        "add_rms_norm": lambda: norm(np.add(a.x, a.y, out=total)),
        "rope": rope,
        "silu_and_mul": silu_and_mul,
        "softmax": softmax,
    }
