"""The operators as torch does them on a CPU: its own functions, `out=` where they have one, in inference mode.

A call without `out=` allocates its result, as torch's users see it: `rms_norm` and the rotation. Numpy's arrays are taken as they
lie, and what comes back are calls to be timed.
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


def operators(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, heads: np.ndarray, cos: np.ndarray, sin: np.ndarray, eps: float
) -> dict[str, Call]:
    """The elementwise ones. cos, sin: a row for each token.

    The rotation is transformers': the tables are laid out for both halves beforehand, the halves turned by a concatenation.
    """
    a, b, w, turned = map(torch.from_numpy, (x, y, weight, heads))
    out, total, half = torch.empty_like(a), torch.empty_like(a), heads.shape[-1] // 2
    c, s = (torch.from_numpy(np.concatenate([table] * 2, axis=-1)[:, None].copy()) for table in (cos, sin))
    calls: dict[str, Call] = {
        "rms_norm": lambda: F.rms_norm(a, w.shape, w, eps),
        "add_rms_norm": lambda: F.rms_norm(torch.add(a, b, out=total), w.shape, w, eps),
        "rope": lambda: turned * c + torch.cat([-turned[..., half:], turned[..., :half]], -1) * s,
        "silu_and_mul": lambda: torch.mul(torch.ops.aten.silu.out(a, out=out), b, out=out),
        "softmax": lambda: torch.softmax(a, -1, out=out),
    }
    return {name: inferring(call) for name, call in calls.items()}
