"""What one operator of a forward pass did, as one frozen record: shapes with named axes, bytes, arithmetic.

>>> record = OperatorRecord(operator="linear", name="q", layer=0, inputs=((("tokens", 5), ("hidden", 64)),),
...     outputs=((("tokens", 5), ("heads x head dim", 64)),), flops=2 * 5 * 64 * 64)
>>> size(record.outputs[0])
320
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

Shape = tuple[tuple[str, int], ...]  # (axis, size), outermost first


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecord:
    """One call of a backend's operator."""

    operator: str  # the backend's method: "linear"
    name: str  # what it is in the decoder: "q"
    layer: int | None  # None before and behind the layers
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    weight: Shape = ()  # of a matrix or a norm: (outputs, inputs) or (channels,)
    weight_bytes: int = 0  # read, as the backend holds them: packed weights count packed
    kv_bytes: int = 0  # of the KV pool, written by the store and read by the attention
    flops: int = 0  # per element: an addition, a multiplication, a division or an exponential is one


def size(shape: Shape) -> int:
    """Numbers in an array of this shape."""
    return prod(length for _, length in shape)
