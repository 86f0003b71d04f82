"""Three doors to one library: the same bits, the same refusals in the same words. (Torch's mirror: test_torch_backend.py.)"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import ISAS, ids, paged_batch

from labcore.core.errors import InvalidConfig, ShapeError
from labcore.kernels.api import ForwardBatch
from labcore.kernels.build import DOORS, load
from labcore.kernels.native import NativeBackend
from labcore.quant.int8 import quantize_int8
from labcore.quant.quantized_tensor import QuantizedTensor

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")
SHAPES = [(1, 1), (3, 17), (17, 3), (1, 1823), (1823, 781)]
EPS = 1e-5


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def attention_case(heads: int = 4, dim: int = 8) -> tuple[ForwardBatch, np.ndarray, np.ndarray, np.ndarray]:
    """A batch of three sequences over scattered blocks; q, k and v of its tokens."""
    rng = np.random.default_rng(heads)
    batch = paged_batch(rng, [1, 3, 17], [1, 3, 17], 4, 12)
    return batch, normal(rng, 21, heads, dim), normal(rng, 21, heads // 2, dim), normal(rng, 21, heads // 2, dim)


# each: what it gives through a backend, as arrays
def rms_norm(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    return b.rms_norm(x, y[0], EPS)


def add_rms_norm(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    return np.concatenate(b.add_rms_norm(x, y, y[0], EPS))


def silu_and_mul(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    return b.silu_and_mul(x, y)


def softmax(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    out = np.empty_like(x)
    b._operators.softmax(out, x)
    return out


def topk_softmax(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    k = 1 + x.shape[1] // 100
    return np.concatenate([*b.topk_softmax(x, k, False), *b.topk_softmax(x, k, True)])


def linear(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    w = b.prepare({"w": y[:40], "bias": y[:40, 0]})
    assert w["w"].shape == y[:40].shape
    return np.concatenate([b.linear(x, w["w"]), b.linear(x, w["w"], w["bias"])])


def linear_int8(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    w = b.prepare({"w": quantize_int8(y[:40])})["w"]
    return np.concatenate([b.linear(x, w), [[w.nbytes] * w.shape[0]]])


def linear_blocks(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    quants = np.random.default_rng(0).integers(0, 60, (7, 20 * 3), dtype=np.uint8)
    w = b.prepare({"w": QuantizedTensor("Q4_1", (7, 96), quants)})["w"]
    return b.linear(np.resize(x, (3, 96)), w)


def embedding(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    return b.embedding(ids([0, len(x) - 1, 0]), b.prepare({"w": x})["w"])


def rope(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    dim = 2 * (1 + x.shape[1] // 20)
    return b.rope(np.resize(x, (5, 3, dim)), ids([0, 1, 2, 9, 4]), np.resize(x, (10, dim // 2)), np.resize(y, (10, dim // 2)))


def attention(b: Any, x: np.ndarray, y: np.ndarray, dtype: str = "float32") -> Any:
    batch, q, k, v = attention_case()
    kv = b.new_kv_cache((1, 2, 12, 2, 4, 8), dtype)[0]
    b.store_kv(k, v, kv, batch.slot_mapping)
    return np.concatenate([b.paged_attention(q, kv, batch, 0.3).ravel(), kv.ravel()])


def attention_over_int8(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    return attention(b, x, y, "int8")


def versions(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    outs = []
    for name in b._operators.rms_norm_versions:
        outs.append(np.empty_like(x))
        b._operators.rms_norm_version(name, outs[-1], x, y[0].copy(), EPS)
    return np.concatenate(outs)


def ceilings(b: Any, x: np.ndarray, y: np.ndarray) -> Any:
    whole, out = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    b._operators.copy(out, whole)
    counts = [b._operators.read(whole), b._operators.multiply_adds(0), b._operators.int8_dots(0)]
    assert counts[0] == whole.sum()
    return np.concatenate([out, counts])


CASES = [
    rms_norm, add_rms_norm, silu_and_mul, softmax, topk_softmax, linear, linear_int8, linear_blocks, embedding, rope, attention,
    attention_over_int8, versions, ceilings,
]  # fmt: skip


@pytest.fixture(scope="module")
def backends() -> dict[str, NativeBackend]:
    return {door: NativeBackend(door=door, threads=2) for door in DOORS}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_door_gives_the_same_bits(backends: dict[str, NativeBackend], case: Callable, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(shape[1])
    x, y = normal(rng, *shape), normal(rng, *shape)
    if case is not ceilings:
        x[-1, -1] = np.nan  # goes in, comes out
    results = {door: np.asarray(case(backend, x, y)) for door, backend in backends.items()}
    for door, result in results.items():
        assert result.size and result.tobytes() == results["nanobind"].tobytes(), door


@pytest.mark.parametrize("door", DOORS)
def test_nan_and_infinity_go_through(backends: dict[str, NativeBackend], door: str) -> None:
    x = np.array([[1, np.nan, 2], [np.inf, 1, 1], [3, 4, 5]], np.float32)
    out = backends[door].rms_norm(x, np.ones(3, np.float32), EPS)
    assert np.isnan(out[0]).all() and np.isnan(out[1, 0]) and np.isfinite(out[2]).all()
    assert np.isnan(backends[door].rms_norm(x, np.ones(3, np.float32), np.nan)).all()


@pytest.mark.parametrize("door", DOORS)
def test_empty_arrays_give_empty_results(backends: dict[str, NativeBackend], door: str) -> None:
    b = backends[door]
    none, one = np.empty((0, 8), np.float32), np.ones(8, np.float32)
    assert b.rms_norm(none, one, EPS).shape == b.silu_and_mul(none, none).shape == (0, 8)
    assert b.rms_norm(np.empty((4, 0), np.float32), one[:0], EPS).shape == (4, 0)
    assert [part.shape for part in b.add_rms_norm(none, none, one, EPS)] == [(0, 8), (0, 8)]
    weight = b.prepare({"w": np.ones((4, 8), np.float32), "no rows": none, "no columns": np.empty((4, 0), np.float32)})
    assert b.linear(none, weight["w"]).shape == (0, 4) and b.linear(one[None], weight["no rows"]).shape == (1, 0)
    assert not b.linear(np.empty((3, 0), np.float32), weight["no columns"]).any()
    assert b.embedding(ids([]), weight["w"]).shape == (0, 8)
    assert b.rope(np.empty((0, 2, 8), np.float32), ids([]), one.reshape(2, 4), one.reshape(2, 4)).shape == (0, 2, 8)
    kv = b.new_kv_cache((1, 2, 3, 2, 4, 8))[0]
    b.store_kv(np.empty((0, 2, 8), np.float32), np.empty((0, 2, 8), np.float32), kv, ids([]))
    batch = ForwardBatch(
        **dict.fromkeys(ForwardBatch.__dataclass_fields__, ids([])) | {"query_start": ids([0]), "block_table_start": ids([0])}
    )
    assert b.paged_attention(np.empty((0, 4, 8), np.float32), kv, batch, 1.0).shape == (0, 4, 8)


def misaligned(shape: tuple[int, ...]) -> np.ndarray:
    raw = np.zeros(4 * int(np.prod(shape)) + 8, np.uint8)
    start = 1 - raw.ctypes.data % 4
    return raw[start + 4 : start + 4 + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


class Tensor:
    """What offers no buffer, as a tensor of torch does not."""


OUT, X, W = np.empty((4, 8), np.float32), np.ones((4, 8), np.float32), np.ones(8, np.float32)
BAD_RMS_NORM: dict[str, tuple[tuple[Any, Any, Any], type[Exception], str]] = {
    "dtype": ((OUT, X.astype(np.float64), W), TypeError, "x is float64; expected float32"),
    "integers": ((OUT, X.astype(np.int32), W), TypeError, "x is int32; expected float32"),
    "half": ((OUT, X, W.astype(np.float16)), TypeError, "weight is float16; expected float32"),
    "booleans": ((OUT, X, W.astype(bool)), TypeError, "weight is bool; expected float32"),
    "complex": ((OUT, X.astype(np.complex64), W), TypeError, "x is complex64; expected float32"),
    "byte order": ((OUT, X.astype(">f4"), W), TypeError, "x is float32 in the byte order of another machine; expected float32"),
    "rank": ((OUT, X[0], W), ShapeError, "x has shape (8,); expected (rows, dim)"),
    "rank 7": ((OUT, X.reshape(4, 8, 1, 1, 1, 1, 1), W), ShapeError, "x has shape (4, 8, 1, 1, 1, 1"),
    "shape": ((OUT, X, W[:7]), ShapeError, "weight has shape (7,); expected (8,) to match x (4, 8)"),
    "shape of out": ((OUT[:3], X, W), ShapeError, "out has shape (3, 8); expected (4, 8) to match x (4, 8)"),
    "scalar": ((OUT, X, np.array(1, np.float32)), ShapeError, "weight has shape (); expected (8,) to match x (4, 8)"),
    "transposed": (
        (OUT, np.ones((8, 4), np.float32).T, W),
        TypeError,
        "x has shape (4, 8) in strides of (4, 16) bytes; expected a C-c",
    ),
    "every other": ((OUT, np.ones((4, 16), np.float32)[:, ::2], W), TypeError, "x has shape (4, 8) in strides of (64, 8) bytes"),
    "backwards": ((OUT, X, W[::-1]), TypeError, "weight has shape (8,) in strides of (-4,) bytes; expected a C-contiguous array"),
    "broadcast": ((OUT, np.broadcast_to(W, (4, 8)), W), TypeError, "x has shape (4, 8) in strides of (0, 4) bytes"),
    "misaligned": ((OUT, misaligned((4, 8)), W), TypeError, "x starts at an address that is no multiple of 4"),
    "read-only out": ((read_only(np.empty((4, 8), np.float32)), X, W), TypeError, "out is read-only"),
    "weight under out": ((OUT[:1], X[:1], OUT[0]), ValueError, "out shares memory with weight; expected arrays that lie apart"),
    "half over": ((OUT[:2], OUT[1:3], W), ValueError, "out shares memory with x; expected arrays that lie apart"),
    "nothing": ((OUT, None, W), TypeError, "x is of type NoneType; expected a numpy array of float32"),
    "a list": ((OUT, [[1.0] * 8] * 4, W), TypeError, "x is of type list; expected a numpy array of float32"),
    "a tensor": (
        (OUT, Tensor(), W),
        TypeError,
        "x is of type Tensor; expected a numpy array of float32 (of a torch tensor: .cpu()",
    ),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("bad", BAD_RMS_NORM)
def test_what_is_wrong_with_an_array_is_said(backends: dict[str, NativeBackend], door: str, bad: str) -> None:
    arrays, error, words = BAD_RMS_NORM[bad]
    with pytest.raises(error) as raised:
        backends[door]._operators.rms_norm(*arrays, EPS)
    assert str(raised.value).startswith(f"rms_norm: {words}")
    assert type(raised.value) is error


def other_arguments(b: Any) -> dict[str, tuple[Callable, str]]:
    """For each other operator one call that is wrong in one argument, and what must be said."""
    rows, kv, batch = np.ones((4, 8), np.float32), np.zeros((2, 3, 2, 4, 8), np.float32), attention_case()[0]
    x, table, at = np.ones((4, 2, 8), np.float32), np.ones((9, 4), np.float32), ids([0, 1, 2, 3])
    w = b.prepare({"w": np.ones((5, 8), np.float32)})["w"]
    matrix = type(w)
    return {
        "linear x": (
            lambda: b.linear(np.ones((4, 9), np.float32), w),
            "linear: x has shape (4, 9); expected (rows, 8) to match weight (5, 8)",
        ),
        "linear bias": (lambda: b.linear(rows, w, rows[0]), "linear: bias has shape (8,); expected (5,) to match weight (5, 8)"),
        "silu up": (
            lambda: b.silu_and_mul(rows, rows[:3]),
            "silu_and_mul: up has shape (3, 8); expected (4, 8) to match gate (4, 8)",
        ),
        "add residual": (
            lambda: b.add_rms_norm(rows, rows[1:], W, EPS),
            "add_rms_norm: residual has shape (3, 8); expected (4, 8) to match x",
        ),
        "rope odd": (
            lambda: b.rope(np.ones((4, 2, 7), np.float32), at, table, table),
            "rope: x has shape (4, 2, 7); expected an even head_dim",
        ),
        "rope positions": (
            lambda: b.rope(x, at[:2], table, table),
            "rope: positions has shape (2,); expected (4,) to match x (4, 2, 8)",
        ),
        "rope cos": (
            lambda: b.rope(x, at, table[:, :3].copy(), table),
            "rope: cos has shape (9, 3); expected (max_len, 4) to match x (4, 2, 8)",
        ),
        "rope sin": (lambda: b.rope(x, at, table, table[:5]), "rope: sin has shape (5, 4); expected (9, 4) to match x (4, 2, 8)"),
        "rope ids": (lambda: b.rope(x, at.astype(np.int32), table, table), "rope: positions is int32; expected int64"),
        "kv heads": (
            lambda: b.store_kv(x[:, :1].copy(), x[:, :1].copy(), kv, at),
            "store_kv: kv has shape (2, 3, 2, 4, 8); expected (2, blocks, 1, ",
        ),
        "kv v": (
            lambda: b.store_kv(x, x[:3], kv, at),
            "store_kv: v has shape (3, 2, 8); expected (4, 2, 8) to match k (4, 2, 8)",
        ),
        "kv int8": (
            lambda: b.store_kv(x, x, kv.astype(np.int8), at),
            "store_kv: kv has shape (2, 3, 2, 4, 8); expected (2, blocks, 2, block_size, 12)",
        ),
        "groups": (
            lambda: b.paged_attention(np.ones((21, 3, 8), np.float32), kv, batch, 1.0),
            "paged_attention: q has shape (21, 3, 8); expected heads",
        ),
        "weight": (lambda: matrix.from_float32(W), "from_float32: weight has shape (8,); expected (rows, columns)"),
        "scales": (
            lambda: matrix.from_int8(rows.astype(np.int8), W),
            "from_int8: scales has shape (8,); expected (4,) to match weight (4, 8)",
        ),
        "blocks": (
            lambda: matrix.from_blocks(np.zeros((2, 33), np.uint8), "Q8_0"),
            "from_blocks: blocks has shape (2, 33); expected rows of whole Q8_0",
        ),
        "format": (
            lambda: matrix.from_blocks(np.zeros((2, 34), np.uint8), "Q9_9"),
            "from_blocks: unknown block format 'Q9_9'; known: Q8_0, Q4_0",
        ),
        "version": (
            lambda: b._operators.rms_norm_version("?", OUT, X, W, EPS),
            "rms_norm_version: there is no version '?'; known: ",
        ),
        "softmax": (lambda: b._operators.softmax(OUT[:1], X), "softmax: out has shape (1, 8); expected (4, 8) to match x (4, 8)"),
        "weights": (
            lambda: b._operators.topk_softmax(OUT[:3, :2].copy(), ids([[0, 0]] * 4), X, True),
            "topk_softmax: weights has shape (3, 2); expected (4, k) to match router_logits (4, 8)",
        ),
        "ids": (
            lambda: b._operators.topk_softmax(OUT[:, :2].copy(), ids([[0]] * 4), X, False),
            "topk_softmax: ids has shape (4, 1); expected (4, 2) to match router_logits (4, 8)",
        ),
        "k": (
            lambda: b._operators.topk_softmax(np.empty((4, 9), np.float32), ids([[0] * 9] * 4), X, True),
            "topk_softmax: k is 9; expected 1 to 8, the experts of router_logits",
        ),
        "read": (lambda: b._operators.read(X), "read: x has shape (4, 8); expected (count,)"),
        "copy": (lambda: b._operators.copy(W, W), "copy: out shares memory with x"),
        "token id": (lambda: b.embedding(ids([5]), w), "token id 5 at index 0 is outside [0, 5)"),
        "position": (lambda: b.rope(x, ids([0, 1, 2, 9]), table, table), "position 9 at index 3 is outside [0, 9)"),
        "slot": (lambda: b.store_kv(x, x, kv, ids([0, 1, 2, 12])), "slot 12 at index 3 is outside [0, 12)"),
        "block id": (lambda: b.paged_attention(np.ones((21, 2, 8), np.float32), kv, batch, 1.0), "block id"),
    }


@pytest.mark.parametrize("door", DOORS)
def test_every_operator_names_the_wrong_argument(backends: dict[str, NativeBackend], door: str) -> None:
    for name, (call, words) in other_arguments(backends[door]).items():
        with pytest.raises((ValueError, TypeError)) as raised:
            call()
        assert str(raised.value).startswith(words), name


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("weight", [None, X, "a name"], ids=["nothing", "an array", "a text"])
def test_what_is_no_packed_matrix_is_refused(backends: dict[str, NativeBackend], door: str, weight: object) -> None:
    with pytest.raises(TypeError, match=r"PackedMatrix"):
        backends[door]._operators.linear(OUT, X, weight, None)


@pytest.mark.parametrize("door", DOORS)
def test_in_place_is_the_same(backends: dict[str, NativeBackend], door: str) -> None:
    """Where an output may be an input, the bits are those of an output that lies apart."""
    b, rng = backends[door], np.random.default_rng(0)
    x, y, w = normal(rng, 70, 333), normal(rng, 70, 333), normal(rng, 333)
    apart = b.rms_norm(x, w, EPS), *b.add_rms_norm(x, y, w, EPS), b.silu_and_mul(x, y)
    norm, total, silu, out = x.copy(), y.copy(), x.copy(), np.empty_like(x)
    b._operators.rms_norm(norm, norm, w, EPS)
    b._operators.add_rms_norm(out, total, x, total, w, EPS)
    b._operators.silu_and_mul(silu, silu, y)
    for got, want in zip((norm, out, total, silu), apart, strict=True):
        assert np.array_equal(got, want)
    with pytest.raises(ValueError, match="out shares memory with x"):
        b._operators.add_rms_norm(x, total, x, y, w, EPS)


@pytest.mark.parametrize("door", DOORS)
def test_other_threads_run_while_a_kernel_does(door: str) -> None:
    """The lock is given away for real work. Nothing else gives it away here: the interpreter itself would switch in a day."""
    b = NativeBackend(door=door, threads=1)
    weight = b.prepare({"w": np.ones((1024, 1024), np.float32)})["w"]
    x, counted, done = np.ones((256, 1024), np.float32), [0], threading.Event()

    def count() -> None:
        while not done.wait(0.001):
            counted[0] += 1

    interval = sys.getswitchinterval()
    other = threading.Thread(target=count)
    other.start()
    sys.setswitchinterval(86400)
    try:
        before = counted[0]
        for _ in range(500):  # a busy machine may not run the other thread during one product
            b.linear(x, weight)
            if counted[0] > before:
                break
        assert counted[0] > before
    finally:
        sys.setswitchinterval(interval)
        done.set()
        other.join()


def test_a_prepared_struct_serves_many_calls() -> None:
    from labcore.kernels import ctypes_door as door

    out = np.empty((4, 8), np.float32)
    views = [door.array(a) for a in (out, X, W)]
    door.Operators("", 1).rms_norm(*views, EPS)
    assert np.array_equal(out, NativeBackend().rms_norm(X, W, EPS))


def test_an_unknown_door_names_the_doors() -> None:
    with pytest.raises(InvalidConfig, match="door is 'cffi'; expected one of nanobind, pybind11, ctypes"):
        NativeBackend(door="cffi")
    assert {load(module).variants()[-1] for module in DOORS.values()} == {"plain"}
