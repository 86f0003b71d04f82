"""Every Triton kernel against float64 numpy, on awkward shapes; `test_triton_kernels.py` runs this file in a process of its own.

With TRITON_INTERPRET=1 the kernels run in Triton's interpreter, on a CPU; without it on the first GPU. Triton looks at that
variable when it is imported, which another test of the same process may have done already.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support import ids, paged_batch

from labcore.bench import gpu_jobs, gpu_kernels
from labcore.core.errors import InvalidConfig, ShapeError
from labcore.kernels.api import ForwardBatch
from labcore.kernels.reference import ReferenceBackend
from labcore.kernels.triton_kernels.backend import TritonBackend
from labcore.kernels.triton_kernels.checks import INTERPRETED, Tiles
from labcore.kernels.triton_kernels.flash_attention import flash_attention
from labcore.kernels.triton_kernels.int8_matmul import int8_matmul
from labcore.kernels.triton_kernels.paged_attention import paged_attention
from labcore.kernels.triton_kernels.rms_norm import add_rms_norm, rms_norm
from labcore.kernels.triton_kernels.rope import rope
from labcore.kernels.triton_kernels.silu_and_mul import BLOCK, silu_and_mul
from labcore.kernels.triton_kernels.softmax import softmax
from labcore.kernels.triton_kernels.store_kv import store_kv
from labcore.kernels.triton_kernels.topk_softmax import topk_softmax
from labcore.model.weights import load_model

DEVICE = "cpu" if INTERPRETED else "cuda"
ORACLE = ReferenceBackend(np.float64)
# Relative to the largest number: what rounding the result to the type costs at the most, with room for the sums.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SIZES = [1, 3, 17, 63, 65, 130]
EPS = 1e-5
SMALL = Tiles(rows=16, columns=16, num_warps=1)

every_type = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def wide(x: torch.Tensor) -> np.ndarray:
    return x.double().cpu().numpy()


def close(got: torch.Tensor, want: np.ndarray, dtype: torch.dtype) -> bool:
    """Same shape and type; no number is further off than the type's tolerance; a NaN never is near."""
    assert got.dtype == dtype and tuple(got.shape) == want.shape
    return bool(np.abs(wide(got) - want).max(initial=0) <= TOLERANCE[dtype] * max(np.abs(want).max(initial=0), 1e-30))


def device_ids(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, np.int64), device=DEVICE)


@every_type
@pytest.mark.parametrize("columns", SIZES)
def test_rms_norm(dtype: torch.dtype, columns: int) -> None:
    x, residual, weight = (normal(i, *shape, dtype=dtype) for i, shape in enumerate([(3, columns), (3, columns), (columns,)]))
    assert close(rms_norm(x, weight, EPS), ORACLE.rms_norm(wide(x), wide(weight), EPS), dtype)
    out, total = add_rms_norm(x, residual, weight, EPS)
    assert close(total, wide(x) + wide(residual), dtype)
    assert dtype == torch.bfloat16 or torch.equal(total, x + residual)  # the interpreter cuts bfloat16 off, a GPU rounds it
    assert torch.equal(out, rms_norm(total, weight, EPS))  # fused equals apart, bit for bit


@every_type
@pytest.mark.parametrize("size", [*SIZES, BLOCK + 1])
def test_silu_and_mul(dtype: torch.dtype, size: int) -> None:
    gate, up = 10 * normal(1, 1, size, dtype=dtype), normal(2, 1, size, dtype=dtype)
    assert close(silu_and_mul(gate, up), ORACLE.silu_and_mul(wide(gate), wide(up)), dtype)


def test_silu_at_the_edges_of_exp() -> None:
    gate = torch.tensor([[-np.inf, -3e38, -1e4, -100.0, 0.0, 88.0, 1e4, np.nan]], device=DEVICE)
    out = wide(silu_and_mul(gate, torch.ones_like(gate)))[0]
    assert np.allclose(out[:7], [0, 0, 0, 0, 0, 88, 1e4], atol=1e-6) and np.isnan(out[7])


@every_type
@pytest.mark.parametrize("columns", SIZES)
def test_softmax(dtype: torch.dtype, columns: int) -> None:
    x = 10 * normal(columns, 2, columns, dtype=dtype) - 200  # all far below zero: a padded zero would win the maximum
    e = np.exp(wide(x) - wide(x).max(axis=1, keepdims=True))
    assert close(softmax(x), e / e.sum(axis=1, keepdims=True), dtype)


@every_type
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("columns", SIZES)
def test_topk_softmax(dtype: torch.dtype, columns: int, renormalize: bool) -> None:
    x, k = 3 * normal(columns, 3, columns, dtype=dtype) - 200, min(columns, 5)
    weights, places = topk_softmax(x, k, renormalize)
    want, wanted = ORACLE.topk_softmax(wide(x), k, renormalize)
    assert np.array_equal(places.cpu().numpy(), wanted) and close(weights, want, dtype)


@every_type
def test_topk_softmax_at_its_edges(dtype: torch.dtype) -> None:
    """Of equals the lower place, in a row that fills no power of two; a NaN last, and in every weight of its row."""
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[1, 3, 3, 0, 3], [5, nan, 4, -inf, 2], [nan] * 5, [0, -inf, -inf, -inf, -inf]], dtype=dtype, device=DEVICE)
    for renormalize in (False, True):
        weights, places = topk_softmax(x, 5, renormalize)
        assert places.tolist() == [[1, 2, 4, 0, 3], [0, 2, 4, 1, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
        assert weights.isnan().all(1).tolist() == [False, True, True, False]
        assert weights[3].tolist() == [1, 0, 0, 0, 0] and not weights[0].isnan().any()


@every_type
@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (3, 34), (9, 64), (8, 40)])
def test_rope(dtype: torch.dtype, heads: int, dim: int) -> None:
    x, positions = normal(1, 4, heads, dim, dtype=dtype), [0, 5, 6, 99]
    angles = np.arange(100)[:, None] * 100.0 ** -np.linspace(0, 1, dim // 2)
    cos, sin = (torch.as_tensor(f(angles), dtype=torch.float32, device=DEVICE) for f in (np.cos, np.sin))
    want = ORACLE.rope(wide(x), ids(positions), wide(cos), wide(sin))
    assert close(rope(x, device_ids(positions), cos, sin), want, dtype)


@every_type
@pytest.mark.parametrize(("heads", "block_size", "dim"), [(1, 1, 2), (3, 4, 8), (2, 3, 40)])
def test_store_kv(dtype: torch.dtype, heads: int, block_size: int, dim: int) -> None:
    """Each token lands in its slot, bit for bit; a slot of -1 is padding; nothing else is touched."""
    pool = torch.full((2, 5, heads, block_size, dim), torch.nan, dtype=dtype, device=DEVICE)
    k, v = normal(1, 4, heads, dim, dtype=dtype), normal(2, 4, heads, dim, dtype=dtype)
    slots = [5 * block_size - 1, 0, -1, 2 * block_size]
    want = pool.clone()
    for token, slot in enumerate(slots):
        if slot >= 0:
            want[0, slot // block_size, :, slot % block_size] = k[token]
            want[1, slot // block_size, :, slot % block_size] = v[token]
    store_kv(k, v, pool, device_ids(slots))
    assert torch.equal(pool.nan_to_num(-7), want.nan_to_num(-7))


@every_type
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 16), (3, 1, 40), (4, 2, 8)])
def test_flash_attention(dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    """Sequences of odd lengths side by side, one of them empty, each as if it were alone."""
    lengths = [1, 17, 0, 3, 33]
    start = np.cumsum([0, *lengths])
    q = normal(1, sum(lengths), heads, dim, dtype=dtype)
    k, v = (normal(i, sum(lengths), kv_heads, dim, dtype=dtype) for i in (2, 3))
    got = flash_attention(q, k, v, device_ids(start), scale=dim**-0.5, max_query_len=max(lengths), tiles=SMALL)
    assert close(got, attention(q, k, v, start), dtype)


def test_flash_attention_with_tiles_that_are_no_squares() -> None:
    q, k, v = (normal(i, 65, 1, 16) for i in range(3))
    for rows, columns in ((16, 32), (32, 16), (64, 16)):
        tiles = Tiles(rows=rows, columns=columns, num_warps=1)
        got = flash_attention(q, k, v, device_ids([0, 65]), scale=0.25, max_query_len=65, tiles=tiles)
        assert close(got, attention(q, k, v, [0, 65]), torch.float32)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: Any) -> np.ndarray:
    """torch's own, in float64, a sequence at a time -> (tokens, heads, dim)."""
    parts = [
        torch.nn.functional.scaled_dot_product_attention(
            *(x[a:b].double().cpu().transpose(0, 1) for x in (q, k, v)), is_causal=True, enable_gqa=True
        ).transpose(0, 1)
        for a, b in pairwise(start)
        if b > a
    ]
    return torch.cat(parts).numpy()


def paged(
    queries: list[int], contexts: list[int], heads: int, kv_heads: int, block_size: int, dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, ForwardBatch]:
    """Queries, a pool and a batch: blocks lie scattered, and slots that nobody wrote hold NaN."""
    num_blocks = sum(-(-context // block_size) for context in contexts) + 2
    batch = paged_batch(np.random.default_rng(7), queries, contexts, block_size, num_blocks)
    kv = torch.full((2, num_blocks, kv_heads, block_size, dim), torch.nan, dtype=dtype, device=DEVICE)
    for s, context in enumerate(contexts):
        table = torch.as_tensor(batch.block_tables[batch.block_table_start[s] : batch.block_table_start[s + 1]], device=DEVICE)
        p = torch.arange(context, device=DEVICE)
        kv[:, table[p // block_size], :, p % block_size] = normal(s, context, 2, kv_heads, dim, dtype=dtype)
    return normal(9, batch.num_tokens, heads, dim, dtype=dtype), kv, batch


def attend_paged(q: torch.Tensor, kv: torch.Tensor, batch: ForwardBatch, **cut: Any) -> torch.Tensor:
    index = [device_ids(x) for x in (batch.positions, batch.query_start, batch.block_tables, batch.block_table_start)]
    most = {"max_query_len": int(np.diff(batch.query_start).max()), "max_context_len": int(batch.context_lens.max())}
    return paged_attention(q, kv, *index, scale=q.shape[2] ** -0.5, **most, **cut)


@every_type
@pytest.mark.parametrize(
    ("heads", "kv_heads", "block_size", "dim", "split_keys"),
    [(3, 1, 4, 16, 32), (4, 2, 3, 8, 32), (2, 2, 16, 40, 32), (2, 2, 16, 40, 512)],
)
def test_paged_attention_of_decodes(
    dtype: torch.dtype, heads: int, kv_heads: int, block_size: int, dim: int, split_keys: int
) -> None:
    """One query a sequence, or a few that verify a draft, over contexts below, at and beyond the ends of splits."""
    q, kv, batch = paged([1, 1, 2, 1], [1, 32, 34, 65], heads, kv_heads, block_size, dim, dtype)
    got = attend_paged(q, kv, batch, tiles=SMALL, split_keys=split_keys)
    assert close(got, ORACLE.paged_attention(wide(q), wide(kv), batch, dim**-0.5), dtype)


@every_type
def test_paged_attention_of_chunks(dtype: torch.dtype) -> None:
    """A prompt's chunk in the middle, a whole prompt and a decode in one batch: rows of several tiles."""
    q, kv, batch = paged([17, 1, 9], [40, 19, 9], 4, 2, 4, 16, dtype)
    got = attend_paged(q, kv, batch, tiles=SMALL)
    assert close(got, ORACLE.paged_attention(wide(q), wide(kv), batch, 16**-0.5), dtype)


def test_many_splits_are_merged_by_sixteen() -> None:
    q, kv, batch = paged([1, 1], [300, 20], 2, 1, 16, 16, torch.float32)
    got = attend_paged(q, kv, batch, tiles=SMALL, split_keys=16)  # 19 splits: two groups
    assert close(got, ORACLE.paged_attention(wide(q), wide(kv), batch, 16**-0.5), torch.float32)


@pytest.mark.parametrize("context", [20, 40])
def test_a_decode_does_not_depend_on_its_mates(context: int) -> None:
    """Splits and their order are absolute: beside a long sequence a short one has the bits that it has alone, split or not."""
    q, kv, batch = paged([1, 1], [context, 130], 2, 1, 4, 16, torch.float32)
    alone = replace(
        batch,
        positions=batch.positions[:1],
        query_start=batch.query_start[:2],
        context_lens=batch.context_lens[:1],
        block_table_start=batch.block_table_start[:2],
    )
    together = attend_paged(q, kv, batch, tiles=SMALL, split_keys=32)
    assert torch.equal(attend_paged(q[:1], kv, alone, tiles=SMALL, split_keys=32), together[:1])


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 17, 63), (65, 33, 130), (17, 65, 16)])
@every_type
def test_int8_matmul(dtype: torch.dtype, m: int, n: int, k: int) -> None:
    draw = torch.Generator().manual_seed(m)
    x, w = (torch.randint(-128, 128, (rows, k), generator=draw, dtype=torch.int8).to(DEVICE) for rows in (m, n))
    x_scale, w_scale = (torch.rand(rows, generator=draw).to(DEVICE) / 100 for rows in (m, n))
    want = wide(x) @ wide(w).T * wide(x_scale)[:, None] * wide(w_scale)
    tiles = Tiles(rows=32, columns=16, num_warps=1)
    assert close(int8_matmul(x, w, x_scale, w_scale, dtype, tiles=tiles, depth=32), want, dtype)


def test_int8_sums_are_exact_where_they_are_largest() -> None:
    x = torch.full((2, 3000), -128, dtype=torch.int8, device=DEVICE)  # 3000 x 2^14 is far beyond int16, and odd multiples show
    one = torch.ones(2, device=DEVICE)
    got = int8_matmul(x, x, one, one, tiles=Tiles(rows=32, columns=32, num_warps=1), depth=1024)
    assert torch.equal(got, torch.full_like(got, 3000 * 128**2))


BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda x, w: rms_norm(x.double(), w, EPS), TypeError, r"rms_norm: x is float64; expected one of float32, float16, bfloat16"),
    (lambda x, w: rms_norm(x.cpu().numpy(), w, EPS), TypeError, r"rms_norm: x is of type ndarray; expected a torch tensor"),
    (lambda x, w: rms_norm(x, w.half(), EPS), TypeError, r"rms_norm: weight is float16; expected float32"),
    (lambda x, w: rms_norm(x, w[:7], EPS), ShapeError, r"rms_norm: weight has shape \(7,\); expected \(8,\) to match x \(4, 8\)"),
    (lambda x, w: rms_norm(x[0], w, EPS), ShapeError, r"rms_norm: x has shape \(8,\); expected \(rows, columns\)"),
    (lambda x, w: rms_norm(x.new_empty(2, 0), w[:0], EPS), ShapeError, r"rms_norm: x has 0 columns"),
    (lambda x, w: rms_norm(x.T.contiguous().T, w, EPS), TypeError, r"x has shape \(4, 8\) in other strides; expected a C-cont"),
    (lambda x, w: rms_norm(x, w.to("meta"), EPS), TypeError, r"rms_norm: weight is on meta; expected (cpu|cuda)"),
    (lambda x, w: add_rms_norm(x, x[:3], w, EPS), ShapeError, r"add_rms_norm: residual has shape \(3, 8\); expected \(4, 8\)"),
    (lambda x, w: silu_and_mul(x, x[:3]), ShapeError, r"silu_and_mul: up has shape \(3, 8\); expected \(4, 8\)"),
    (lambda x, w: softmax(x.new_empty(0, 1 << 18)), ShapeError, r"softmax: x has 262144 columns; expected 1 to 131072"),
    (lambda x, w: topk_softmax(x.new_empty(0, 1 << 18), 2, True), ShapeError, r"topk_softmax: router_logits has 262144 columns"),
    (lambda x, w: topk_softmax(x, 9, True), ValueError, r"topk_softmax: k is 9; expected 1 to 8, the experts of router_logits"),
    (lambda x, w: rope(x.view(4, 1, 8)[..., :7].contiguous(), None, None, None), ShapeError, r"rope: .* an even head_dim"),
    (lambda x, w: rope(x.view(4, 1, 8), w[:4], x, x), TypeError, r"rope: positions is float32; expected int64"),
    (lambda x, w: rope(x.view(4, 1, 8), device_ids([0] * 4), x, x), ShapeError,
     r"rope: cos has shape \(4, 8\); expected \(max_len, 4\)"),
    (lambda x, w: store_kv(x.view(4, 1, 8), x.view(4, 1, 8), x.view(1, 4, 1, 1, 8), device_ids([0] * 4)), ShapeError,
     r"store_kv: kv has shape \(1, 4, 1, 1, 8\); expected \(2, blocks, 1, block_size, 8\)"),
    (lambda x, w: flash_attention(x.view(2, 2, 8), *[x.new_empty(2, 3, 8)] * 2, device_ids([0, 2]), scale=1.0, max_query_len=2),
     ShapeError, r"flash_attention: 2 heads over 3 KV heads; expected a multiple"),
    (lambda x, w: attend_paged(x.view(4, 1, 8), x.new_empty(2, 1, 1, 4, 16), ForwardBatch.of_one_sequence(range(4))), ShapeError,
     r"paged_attention: kv has shape \(2, 1, 1, 4, 16\); expected \(2, blocks, kv_heads, block_size, 8\)"),
    (lambda x, w: int8_matmul(x, x, w, w), TypeError, r"int8_matmul: x is float32; expected int8"),
    (lambda x, w: int8_matmul(x.char(), x.char(), w, w), ShapeError, r"x_scale has shape \(8,\); expected \(4,\)"),
    (lambda x, w: int8_matmul(x.char(), x.char(), w[:4], w[:4], torch.int32), TypeError, r"dtype is torch.int32"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "says"), BAD, ids=[says for _, _, says in BAD])
def test_a_bad_argument_is_named(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call(torch.zeros(4, 8, device=DEVICE), torch.zeros(8, device=DEVICE))


def test_no_rows_are_legal() -> None:
    nothing, weight = torch.zeros(0, 8, device=DEVICE), torch.ones(8, device=DEVICE)
    assert rms_norm(nothing, weight, EPS).shape == silu_and_mul(nothing, nothing).shape == softmax(nothing).shape == (0, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_lab_model_on_the_triton_backend(dtype: torch.dtype) -> None:
    """Chunks over a paged pool, packed weights expanded: logits as those of float64, within what the type can tell."""
    backend, tokens = TritonBackend(DEVICE, dtype), [3, 14, 15, 92, 65]
    ours, theirs = load_model("lab", backend=backend), load_model("lab", backend="reference")
    logits = []
    for model in (ours, theirs):
        kv = model.backend.new_kv_cache((model.config.num_layers, 2, 1, model.config.num_kv_heads, 8, model.config.head_dim))
        batch = ForwardBatch.of_one_sequence(tokens)
        logits.append(model.forward(batch, kv))
    error = np.linalg.norm(logits[0] - logits[1]) / np.linalg.norm(logits[1])
    assert error < (1e-5 if dtype == torch.float32 else 3e-2)


def test_the_backend_refuses_indices_that_point_outside() -> None:
    backend = TritonBackend(DEVICE, torch.float32)
    weights = backend.prepare({"w": np.ones((4, 8)), "rope.cos": np.ones((4, 4)), "rope.sin": np.ones((4, 4))})
    assert weights["rope.cos"].dtype == torch.float32
    x, kv = torch.ones(1, 1, 8, device=DEVICE), backend.new_kv_cache((1, 2, 2, 1, 4, 8))[0]
    for bad in ([-1], [8]):
        with pytest.raises(ValueError, match=r"token id out of range: got -?\d"):
            backend.embedding(ids(bad), weights["w"])
        with pytest.raises(ValueError, match="position out of range"):
            backend.rope(x, ids(bad), weights["rope.cos"], weights["rope.sin"])
        with pytest.raises(ValueError, match="slot out of range"):
            backend.store_kv(x, x, kv, ids(bad))
    with pytest.raises(ValueError, match=r"position out of range: got 4 to 4, expected \[0, 4\)"):
        backend.paged_attention(x, kv, ForwardBatch.of_one_sequence([0], 4), 1.0)
    short = replace(ForwardBatch.of_one_sequence([0, 0]), query_start=ids([0, 1, 2]), block_table_start=ids([0, 1, 1]))
    with pytest.raises(ValueError, match="behind the block table of its sequence"):
        backend.paged_attention(x.expand(2, 1, 8).contiguous(), kv, short, 1.0)
    with pytest.raises(ValueError, match="bias"):
        backend.linear(x[0], weights["w"], x[0, 0, :1])
    with pytest.raises(InvalidConfig, match="no int8 KV pool"):
        backend.new_kv_cache((1, 2, 2, 1, 4, 12), "int8")
    with pytest.raises(InvalidConfig, match=r"dtype is torch\.float64; expected torch\.bfloat16 or torch\.float32"):
        TritonBackend(DEVICE, torch.float64)


def test_index_arrays_are_known_again_by_what_they_hold() -> None:
    """The same array, changed in place, is another one."""
    backend = TritonBackend(DEVICE, torch.float32)
    x, rows = torch.arange(3.0, device=DEVICE)[:, None], ids([0])
    for i in (0, 2, 1, 0):
        rows[0] = i
        assert backend.take_rows(x, rows).item() == i


GPU_JOBS = {
    "rms_norm": (3, 40), "add_rms_norm": (3, 40), "silu_and_mul": (3, 40), "softmax": (3, 40), "rope": (5, 4, 16),
    "store_kv": (8, 2, 16), "flash_attention": (40, 4, 2, 16), "paged_decode": (2, 1040, 4, 2, 16), "int8_matmul": (40, 56, 40),
}  # fmt: skip


@pytest.mark.parametrize(("name", "sizes"), GPU_JOBS.items())
def test_what_is_measured_on_a_gpu_is_right(name: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """At small sizes: every way that `gpu_kernels` times computes what its reference does; peers that need a GPU aside."""
    monkeypatch.setattr(gpu_jobs, "BEYOND_CACHE", 1)
    monkeypatch.setattr(gpu_jobs, "compiled", lambda function: function)
    job = getattr(gpu_jobs, name)(*sizes, DEVICE)
    want = job.reference()
    ours = dict(list(job.candidates.items())[:1])
    calls = {k: call for k, call in (ours | dict(job.contenders)).items() if DEVICE == "cuda" or "cuDNN" not in k}
    assert len(calls) >= 2
    assert {
        k: error for k, call in calls.items() if not (error := gpu_kernels.error_of(call, want)) < gpu_kernels.TOLERANCE
    } == {}
