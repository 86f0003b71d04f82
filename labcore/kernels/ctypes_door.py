"""The C interface (`cpp/bindings/c_api.cpp`) through ctypes: the same classes as the compiled doors, written in Python.

No compiler is needed to call a C library, only this file: structs are filled by hand and statuses become exceptions. That
is what a call costs here: an array is looked at in Python, microseconds each time. `array(x)` does it once for many calls;
x must then stay where it is.

    >>> operators = Operators("", threads=1)
    >>> out, x, weight = array(np.empty((2, 8), "f")), array(np.ones((2, 8), "f")), array(np.ones(8, "f"))
    >>> operators.rms_norm(out, x, weight, 1e-5)
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from ctypes import byref, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_uint8, c_void_p
from itertools import count, takewhile
from typing import Any

import numpy as np

from labcore.core.errors import ShapeError
from labcore.kernels.build import find

_FOREIGN = ">" if sys.byteorder == "little" else "<"
_ERRORS = {1: TypeError, 2: ShapeError, 3: ValueError, 4: RuntimeError}


class ArrayView(ctypes.Structure):
    """`labkernels::ArrayView`, field by field."""

    _fields_ = [
        ("data", c_void_p), ("instead", c_char_p), ("shape", c_int64 * 6), ("strides", c_int64 * 6),
        ("ndim", c_int32), ("itemsize", c_int32), ("kind", c_char), ("swapped", c_uint8), ("readonly", c_uint8),
    ]  # fmt: skip


def array(x: Any) -> ArrayView:
    """The struct of an array; it keeps the array alive. What is no numpy array says so, and the library refuses it."""
    if isinstance(x, ArrayView):
        return x
    if not isinstance(x, np.ndarray):
        return ArrayView(instead=type(x).__name__.encode())
    facts = x.__array_interface__
    (address, read_only), (order, kind) = facts["data"], facts["typestr"][:2]
    view = ArrayView(address, None, x.shape[:6], x.strides[:6], x.ndim, x.itemsize, kind.encode(), order == _FOREIGN, read_only)
    view.owner = x
    return view


def _at(x: Any) -> Any:
    """The address of an array's struct, as an argument."""
    return byref(array(x))


def variants() -> list[str]:
    """Instruction sets this machine runs, best first."""
    return _names(_library.lab_variant)


def nothing() -> None:
    """An empty call: what the door itself costs. (Through this function; `library.lab_nothing` is the bare one.)"""
    _library.lab_nothing()


class PackedMatrix:
    """A weight matrix (rows, columns) packed in panels of 16 rows; immutable."""

    def __init__(self, handle: c_void_p) -> None:
        self._as_parameter_ = handle
        weakref.finalize(self, _library.lab_matrix_free, handle)

    @classmethod
    def from_float32(cls, weight: Any) -> PackedMatrix:
        handle = c_void_p()
        _check(_library.lab_matrix_from_float32(byref(handle), _at(weight)))
        return cls(handle)

    @classmethod
    def from_int8(cls, weight: Any, scales: Any) -> PackedMatrix:
        handle = c_void_p()
        _check(_library.lab_matrix_from_int8(byref(handle), _at(weight), _at(scales)))
        return cls(handle)

    @classmethod
    def from_blocks(cls, blocks: Any, format: str) -> PackedMatrix:
        handle = c_void_p()
        _check(_library.lab_matrix_from_blocks(byref(handle), _at(blocks), format.encode()))
        return cls(handle)

    @property
    def shape(self) -> tuple[int, int]:
        return _library.lab_matrix_rows(self), _library.lab_matrix_columns(self)

    @property
    def nbytes(self) -> int:
        return _library.lab_matrix_nbytes(self)


class Operators:
    """One variant of the kernels and one team of threads. Outputs come first; nothing is copied."""

    def __init__(self, isa: str, threads: int, reference: bool = False) -> None:
        self._as_parameter_ = handle = c_void_p()
        _check(_library.lab_operators_new(byref(handle), isa.encode(), threads, reference))
        weakref.finalize(self, _library.lab_operators_free, handle)
        self.isa: str = _library.lab_operators_isa(self).decode()
        self.threads = threads

    def embedding(self, out: Any, token_ids: Any, weight: PackedMatrix) -> None:
        _check(_library.lab_embedding(self, _at(out), _at(token_ids), _matrix(weight)))

    def rms_norm(self, out: Any, x: Any, weight: Any, eps: float) -> None:
        _check(_library.lab_rms_norm(self, _at(out), _at(x), _at(weight), c_float(eps)))

    @property
    def rms_norm_versions(self) -> list[str]:
        return _names(lambda i: _library.lab_rms_norm_version_name(self, i))

    def rms_norm_version(self, version: str, out: Any, x: Any, weight: Any, eps: float) -> None:
        _check(_library.lab_rms_norm_version(self, version.encode(), _at(out), _at(x), _at(weight), c_float(eps)))

    def add_rms_norm(self, out: Any, total: Any, x: Any, residual: Any, weight: Any, eps: float) -> None:
        _check(_library.lab_add_rms_norm(self, _at(out), _at(total), _at(x), _at(residual), _at(weight), c_float(eps)))

    def linear(self, out: Any, x: Any, weight: PackedMatrix, bias: Any = None) -> None:
        _check(_library.lab_linear(self, _at(out), _at(x), _matrix(weight), _at(bias)))

    def rope(self, out: Any, x: Any, positions: Any, cos: Any, sin: Any) -> None:
        _check(_library.lab_rope(self, _at(out), _at(x), _at(positions), _at(cos), _at(sin)))

    def store_kv(self, kv: Any, k: Any, v: Any, slot_mapping: Any) -> None:
        _check(_library.lab_store_kv(self, _at(kv), _at(k), _at(v), _at(slot_mapping)))

    def paged_attention(
        self, out: Any, q: Any, kv: Any, positions: Any, query_start: Any, block_tables: Any, block_table_start: Any, scale: float
    ) -> None:
        arrays = map(_at, (out, q, kv, positions, query_start, block_tables, block_table_start))
        _check(_library.lab_paged_attention(self, *arrays, c_float(scale)))

    def silu_and_mul(self, out: Any, gate: Any, up: Any) -> None:
        _check(_library.lab_silu_and_mul(self, _at(out), _at(gate), _at(up)))

    def softmax(self, out: Any, x: Any) -> None:
        _check(_library.lab_softmax(self, _at(out), _at(x)))

    def topk_softmax(self, weights: Any, ids: Any, router_logits: Any, renormalize: bool) -> None:
        _check(_library.lab_topk_softmax(self, _at(weights), _at(ids), _at(router_logits), renormalize))

    def read(self, x: Any) -> float:
        total = c_double()
        _check(_library.lab_read(self, byref(total), _at(x)))
        return total.value

    def copy(self, out: Any, x: Any) -> None:
        _check(_library.lab_copy(self, _at(out), _at(x)))

    def multiply_adds(self, count: int) -> float:
        return _library.lab_multiply_adds(self, c_int64(count))

    def int8_dots(self, count: int) -> int:
        return _library.lab_int8_dots(self, c_int64(count))


def _matrix(weight: Any) -> PackedMatrix:
    if not isinstance(weight, PackedMatrix):  # the library would believe any address
        raise TypeError(f"weight is of type {type(weight).__name__}; expected a PackedMatrix")
    return weight


def _names(name_of: Callable[[int], bytes | None]) -> list[str]:
    """The names that a function of the library gives by number, until there are no more."""
    return [name.decode() for name in takewhile(bool, map(name_of, count())) if name]


def _check(status: int) -> None:
    if status:
        raise _ERRORS[status](_library.lab_last_error().decode())


def _open() -> ctypes.CDLL:
    library = ctypes.CDLL(str(find("_c_api")))
    for names, result in _RESULTS.items():
        for name in names.split():
            getattr(library, f"lab_{name}").restype = result
    if library.lab_array_bytes() != ctypes.sizeof(ArrayView):
        raise ImportError(f"an array is {library.lab_array_bytes()} bytes in the library and {ctypes.sizeof(ArrayView)} here")
    return library


# What does not return a status. Without this ctypes would take every result for a 32-bit int.
_RESULTS = {
    "last_error variant operators_isa rms_norm_version_name": c_char_p,
    "array_bytes matrix_rows matrix_columns matrix_nbytes int8_dots": c_int64,
    "multiply_adds": c_float,
    "nothing matrix_free operators_free": None,
}
_library = _open()
