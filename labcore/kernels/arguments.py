"""What an operator in Python checks before it computes: the checks of cpp/include/labkernels/arguments.hpp, in the same words.

For tensors of torch, and numpy arrays of ids. What only C++ must fear is not here: alignment, overlap, memory that is
read-only. Limits: the byte order of an array shows in its dtype.

    >>> check = Arguments("rms_norm")
    >>> check("x", torch.ones(4, 8), "float32", "rows", "dim")
    >>> check("weight", torch.ones(7), "float32", 8)
    Traceback (most recent call last):
    ...
    labcore.core.errors.ShapeError: rms_norm: weight has shape (7,); expected (8,) to match x (4, 8)
"""

from __future__ import annotations

from typing import Any

from labcore.core.errors import ShapeError


class Arguments:
    """The arguments of one call of one operator. The first one checked (or `leader`) is the one whose shape the others follow."""

    def __init__(self, operator: str, leader: str = "", shape: tuple[int, ...] = ()) -> None:
        self.operator, self.leader, self.shape = operator, leader, shape

    def __call__(self, name: str, array: Any, dtype: str, *expected: int | str) -> None:
        """Raises TypeError or ShapeError. expected: a number for each axis, or a name where any number will do."""
        what = f"{self.operator}: {name}"
        if not hasattr(array, "dtype"):
            raise TypeError(f"{what} is of type {type(array).__name__}; expected an array of {dtype}")
        got, shape = str(array.dtype).removeprefix("torch."), tuple(array.shape)
        if got != dtype:
            raise TypeError(f"{what} is {got}; expected {dtype}")
        if len(shape) != len(expected) or any(
            n != size for n, size in zip(shape, expected, strict=True) if isinstance(size, int)
        ):
            follows = f" to match {self.leader} {self.shape}" if self.leader else ""
            wanted = ", ".join(map(str, expected)) + ("," if len(expected) == 1 else "")
            raise ShapeError(f"{what} has shape {shape}; expected ({wanted}){follows}")
        if not (array.is_contiguous() if hasattr(array, "is_contiguous") else array.flags.c_contiguous):
            raise TypeError(f"{what} has shape {shape} in other strides; expected a C-contiguous array (order='C')")
        if not self.leader:
            self.leader, self.shape = name, shape


def check_k(k: int, num_experts: int) -> None:
    """Raises ValueError if so many experts cannot be chosen."""
    if not 1 <= k <= num_experts:
        raise ValueError(f"topk_softmax: k is {k}; expected 1 to {num_experts}, the experts of router_logits")


def check_ids(what: str, ids: Any, limit: int) -> None:
    """Raises ValueError if an id, of a numpy array, would point outside."""
    if len(ids) and not (ids.min() >= 0 and ids.max() < limit):
        raise ValueError(f"{what} out of range: got {ids.min()} to {ids.max()}, expected [0, {limit})")
