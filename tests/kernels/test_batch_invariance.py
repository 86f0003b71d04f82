"""On exact backends a row has the same bits whatever else is in the batch, however many threads, wherever its blocks lie."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support import ISAS, exact_backends, ids, paged_batch

from labcore.kernels.native import NativeBackend

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")


@pytest.mark.parametrize("name", exact_backends())
@pytest.mark.parametrize(("rows", "columns", "outputs"), [(1, 1, 1), (3, 17, 3), (17, 64, 33), (130, 781, 100)])
def test_rows_are_independent_of_their_batch(name: str, rows: int, columns: int, outputs: int) -> None:
    backend = exact_backends()[name]
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((rows, columns), dtype=np.float32)
    prepared = backend.prepare(
        {
            "w": rng.standard_normal((outputs, columns), dtype=np.float32),
            "b": rng.standard_normal(outputs),
            "n": rng.standard_normal(columns),
        }
    )
    weight, bias = prepared["w"], prepared["b"]
    together = backend.linear(x, weight, bias), backend.rms_norm(x, prepared["n"], 1e-5), backend.silu_and_mul(x, x)
    for start, stop in [(0, 1), (rows - 1, rows), (rows // 3, rows // 2 + 1)]:
        part = np.ascontiguousarray(x[start:stop])
        apart = backend.linear(part, weight, bias), backend.rms_norm(part, prepared["n"], 1e-5), backend.silu_and_mul(part, part)
        for whole, piece in zip(together, apart, strict=True):
            assert np.array_equal(whole[start:stop], piece)


@pytest.mark.parametrize("isa", ISAS)
def test_threads_do_not_change_a_bit(isa: str) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((130, 301), dtype=np.float32), rng.standard_normal((500, 301), dtype=np.float32)
    results = []
    for threads in (1, 2, 3, 5):
        backend = NativeBackend(isa=isa, threads=threads)
        out = backend.linear(x, backend.prepare({"w": w})["w"])
        results.append((out, backend.silu_and_mul(out, out), backend.rms_norm(out, np.ones(500, np.float32), 1e-5)))
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("context", [63, 64, 65, 511, 512, 513, 1100])
def test_attention_does_not_see_pages_or_mates(isa: str, context: int) -> None:
    """The last token of a sequence, attended alone and among others, with other pages, other block sizes, other chunks."""
    rng = np.random.default_rng(context)
    keys, values = rng.standard_normal((2, context, 2, 32), dtype=np.float32)
    q = rng.standard_normal((context, 4, 32), dtype=np.float32)
    seen = []
    for block_size, queries, mates in [(16, 1, 0), (16, 1, 3), (5, 9, 1), (64, context, 1)]:
        backend = NativeBackend(isa=isa, threads=1 + mates)
        contexts = [7] * mates + [context]
        batch = paged_batch(rng, [7] * mates + [queries], contexts, block_size, sum(-(-c // block_size) for c in contexts) + 3)
        kv = np.full((2, int(batch.block_tables.max()) + 1, 2, block_size, 32), np.nan, np.float32)
        for s, length in enumerate(contexts):
            table = batch.block_tables[batch.block_table_start[s] : batch.block_table_start[s + 1]]
            p = np.arange(length)
            kv[0, table[p // block_size], :, p % block_size] = keys[:length]
            kv[1, table[p // block_size], :, p % block_size] = values[:length]
        out = backend.paged_attention(np.concatenate([q[:7]] * mates + [q[context - queries :]]), kv, batch, 32**-0.5)
        seen.append(out[-1])
    for other in seen[1:]:
        assert np.array_equal(seen[0], other)


def test_variants_agree_within_rounding() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((9, 333), dtype=np.float32), rng.standard_normal((70, 333), dtype=np.float32)
    outs = [b.linear(x, b.prepare({"w": w})["w"]) for b in (NativeBackend(isa=isa, threads=1) for isa in ISAS)]
    for other in outs[1:]:
        assert np.allclose(outs[0], other, rtol=0, atol=1e-4)


def test_calls_from_several_python_threads_do_not_disturb_each_other() -> None:
    from concurrent.futures import ThreadPoolExecutor

    rng = np.random.default_rng(4)
    backend = NativeBackend(threads=2)
    weight = backend.prepare({"w": rng.standard_normal((300, 128), dtype=np.float32)})["w"]
    inputs = [rng.standard_normal((n, 128), dtype=np.float32) for n in (1, 7, 64, 130) * 8]
    expected = [backend.linear(x, weight) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for got, want in zip(pool.map(lambda x: backend.linear(x, weight), inputs), expected, strict=True):
            assert np.array_equal(got, want)


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork on this system")
def test_a_forked_child_computes_and_ends() -> None:
    """The threads stay in the parent; the child computes alone, with the same bits, and its exit does not hang."""
    import multiprocessing
    import warnings

    backend = NativeBackend(threads=2)
    x = np.random.default_rng(0).standard_normal((64, 512), dtype=np.float32)
    weight = backend.prepare({"w": np.ones((512, 512), np.float32)})["w"]
    expected = backend.linear(x, weight)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(np.array_equal(backend.linear(x, weight), expected)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forking with threads: that is the case tested here
        child.start()
    child.join(20)
    alive = child.is_alive()
    child.kill()
    assert not alive
    assert queue.get()


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork on this system")
def test_a_child_forked_in_mid_kernel_computes_too() -> None:
    """Another thread held the locks when the process was forked; in the child nobody will ever give them back."""
    code = """
import os, sys, threading, time
import numpy as np
from labcore.kernels.native import NativeBackend
backend = NativeBackend(threads=2)
weight = backend.prepare({"w": np.ones((2048, 1024), np.float32)})["w"]
x = np.ones((256, 1024), np.float32)
threading.Thread(target=lambda: [backend.linear(x, weight) for _ in range(10**6)], daemon=True).start()
time.sleep(0.2)
for _ in range(5):
    child = os.fork()
    if child == 0:
        os._exit(0 if backend.linear(x[:3], weight)[0, 0] == 1024 else 1)
    if os.waitpid(child, 0)[1] != 0:
        os._exit(1)
os._exit(0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("query_start", [0, 3, 1]), ("query_start", [0, 1, 1]), ("query_start", [-1, 1, 2]), ("query_start", [1, 1, 2]),
        ("block_table_start", [0, 1 - 2**60, 1]), ("block_table_start", [1, 0, 1]), ("block_table_start", [0, 1, 2**62]),
        ("positions", [0, 16]), ("positions", [-1, 0]), ("block_tables", [0, 9]), ("block_tables", [-1, 0]),
    ],
)  # fmt: skip
def test_a_batch_that_points_outside_is_refused(field: str, values: list[int]) -> None:
    good = {"positions": [0, 0], "query_start": [0, 1, 2], "block_tables": [0, 1], "block_table_start": [0, 1, 2]}
    batch = {name: ids(column) for name, column in {**good, field: values}.items()}
    q, kv = np.ones((2, 1, 8), np.float32), np.ones((2, 2, 1, 16, 8), np.float32)
    operators = NativeBackend(threads=1)._operators
    with pytest.raises(ValueError, match=r"paged_attention|block id"):
        operators.paged_attention(np.empty_like(q), q, kv, *batch.values(), 1.0)


@pytest.mark.parametrize("bad", [ids([-1]), ids([4])])
def test_ids_outside_are_refused_and_not_followed(bad: np.ndarray) -> None:
    backend = NativeBackend(threads=1)
    weight = backend.prepare({"w": np.ones((4, 8), np.float32)})["w"]
    with pytest.raises(ValueError, match=r"token id -?\d at index 0 is outside \[0, 4\)"):
        backend.embedding(bad, weight)
    tables = np.ones((4, 4), np.float32)
    with pytest.raises(ValueError, match="position"):
        backend.rope(np.ones((1, 2, 8), np.float32), bad, tables, tables)
    with pytest.raises(ValueError, match="slot"):
        backend.store_kv(
            np.ones((1, 1, 8), np.float32), np.ones((1, 1, 8), np.float32), np.ones((2, 1, 1, 4, 8), np.float32), bad
        )


def test_bindings_never_copy() -> None:
    """A wrong dtype, stride or shape raises, and says what was expected."""
    backend = NativeBackend(threads=1)
    ones = np.ones((4, 8), np.float32)
    with pytest.raises(TypeError, match="float32"):
        backend.rms_norm(ones.astype(np.float64), np.ones(8, np.float32), 1e-5)
    with pytest.raises(TypeError, match="order='C'"):
        backend._operators.rms_norm(np.empty((4, 8), np.float32), np.ones((8, 4), np.float32).T, np.ones(8, np.float32), 1e-5)
    with pytest.raises(ValueError, match=r"weight has shape \(7,\); expected \(8,\)"):
        backend.rms_norm(ones, np.ones(7, np.float32), 1e-5)
    with pytest.raises(ValueError, match=r"x has shape \(4, 8\); expected \(rows, 9\)"):
        backend.linear(ones, backend.prepare({"w": np.ones((2, 9), np.float32)})["w"])
