"""The operators as torch does them on a CPU: its own functions, `out=` where they have one, in inference mode.

A call without `out=` allocates its result, as torch's users see it: `rms_norm` and the rotation. Each function here takes numpy
arrays, shares their memory, and returns a call to be timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Call = Callable[[], Any]


def use_threads(threads: int) -> None:
    torch.set_num_threads(threads)


def inferring(call: Call) -> Call:
    def inside() -> Any:
        with torch.inference_mode():
            return call()

    return inside


def causal_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Call:
    """q (T, heads, d); k, v (T, kv_heads, d) -> scaled_dot_product_attention, (1, heads, T, d)."""
    queries, keys, values = (torch.from_numpy(x).transpose(0, 1)[None].contiguous() for x in (q, k, v))
    return inferring(lambda: F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True))


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> Call:
    a, w = torch.from_numpy(x), torch.from_numpy(weight)
    return inferring(lambda: F.rms_norm(a, w.shape, w, eps))


def add_rms_norm(x: np.ndarray, residual: np.ndarray, weight: np.ndarray, eps: float) -> Call:
    a, b, w = torch.from_numpy(x), torch.from_numpy(residual), torch.from_numpy(weight)
    total = torch.empty_like(a)
    return inferring(lambda: F.rms_norm(torch.add(a, b, out=total), w.shape, w, eps))


def softmax(x: np.ndarray) -> Call:
    a = torch.from_numpy(x)
    out = torch.empty_like(a)
    return inferring(lambda: torch.softmax(a, -1, out=out))


def silu_and_mul(gate: np.ndarray, up: np.ndarray) -> Call:
    a, b = torch.from_numpy(gate), torch.from_numpy(up)
    out = torch.empty_like(a)
    return inferring(lambda: torch.mul(torch.ops.aten.silu.out(a, out=out), b, out=out))


def rope(x: np.ndarray, positions: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> Call:
    """As transformers writes it: the tables are laid out for both halves beforehand, the halves are turned by a concatenation."""
    a, half = torch.from_numpy(x), x.shape[-1] // 2
    c, s = (torch.from_numpy(np.concatenate([t[positions]] * 2, axis=-1)[:, None].copy()) for t in (cos, sin))
    return inferring(lambda: a * c + torch.cat([-a[..., half:], a[..., :half]], -1) * s)
