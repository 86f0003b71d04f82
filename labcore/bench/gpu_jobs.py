"""What `gpu_kernels` measures: each Triton kernel at the sizes of a real model, its cost, a reference, and torch's own ways.

A job counts the fewest bytes that must move and the arithmetic that must be done; its reference is float64. Inputs are random
and there are several sets of them where one would fit into the GPU's cache (60 MB), so that no run finds its data there.

    >>> job = rms_norm(rows=8192, columns=4096)
    >>> job.contenders["triton"](0).shape
    torch.Size([8192, 4096])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from labcore.kernels.triton_kernels import flash_attention as flash
from labcore.kernels.triton_kernels import int8_matmul as int8
from labcore.kernels.triton_kernels import paged_attention as paged
from labcore.kernels.triton_kernels import rms_norm as norm
from labcore.kernels.triton_kernels import rope as turn
from labcore.kernels.triton_kernels import silu_and_mul as gate
from labcore.kernels.triton_kernels import softmax as soft
from labcore.kernels.triton_kernels import store_kv as store
from labcore.kernels.triton_kernels.checks import Tiles

Call = Callable[[int], torch.Tensor]  # the number of an input set -> the result
DTYPE = torch.bfloat16
BEYOND_CACHE = 256 << 20  # bytes
EPS = 1e-5
COPY, GEMM, INT8 = "copy", "bf16 product", "int8 product"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One kernel at one size. candidates: the kernel cut in several ways; the fastest is measured against the contenders."""

    kernel: str
    size: str
    num_bytes: int
    flops: int
    ceiling: str
    num_sets: int
    reference: Callable[[], torch.Tensor]  # of set 0, in float64
    contenders: Mapping[str, Call]
    candidates: Mapping[str, Call] = field(default_factory=dict)


def all_jobs(device: str = "cuda") -> Iterator[Job]:
    """The sizes of an 8B Llama (hidden 4,096, 32 heads and 8 KV heads of 128) and of its larger sister, one after the other."""
    yield rms_norm(1, 4096, device)  # one token: a launch costs more than its bytes
    for make in (rms_norm, add_rms_norm, silu_and_mul, softmax):
        for rows, columns in ((8192, 4096), (32768, 8192)):
            yield make(rows, columns, device)
    yield rope(8192, 32, 128, device)
    yield rope(32768, 64, 128, device)
    yield store_kv(8192, 8, 128, device)
    yield store_kv(32768, 8, 128, device)
    yield flash_attention(8192, 32, 8, 128, device)
    yield paged_decode(64, 4096, 32, 8, 128, device)
    yield paged_decode(1, 32768, 32, 8, 128, device)
    yield int8_matmul(8192, 8192, 8192, device)


def compiled(function: Callable[..., torch.Tensor]) -> Any:
    return torch.compile(function, dynamic=False)


def _sets(*shapes: tuple[int, ...], device: str) -> list[list[torch.Tensor]]:
    """Random inputs of these shapes, as often as it takes to be larger than the cache."""
    one = sum(torch.Size(shape).numel() for shape in shapes) * DTYPE.itemsize
    count = max(1, min(8, -(-BEYOND_CACHE // max(one, 1))))
    return [[torch.randn(shape, device=device, dtype=torch.float32).to(DTYPE) for shape in shapes] for _ in range(count)]


def _elementwise(
    name: str, size: str, passes: int, flops: int, sets: list[list[torch.Tensor]], ours: Any, theirs: Any, exact: Any
) -> Job:
    """A kernel whose inputs are all tensors of a set; theirs: the same in torch; exact: the same on float64.

    Of several results all are made, and the first is compared.
    """

    def first(call: Any, inputs: Iterable[torch.Tensor]) -> torch.Tensor:
        result = call(*inputs)
        return result[0] if isinstance(result, tuple) else result

    ways = {"triton": ours, "torch eager": theirs, "torch compiled": compiled(theirs)}
    numbers = sets[0][0].numel()
    return Job(
        kernel=name, size=size, num_bytes=passes * numbers * DTYPE.itemsize, flops=flops * numbers, ceiling=COPY,
        num_sets=len(sets), reference=lambda: first(exact, (x.double() for x in sets[0])),
        contenders={who: partial(lambda call, i: first(call, sets[i]), call) for who, call in ways.items()},
    )  # fmt: skip


# Rows at a time: passes over the numbers, operations on each, how many arrays of all rows come before the weight, ours, torch's.
BY_ROWS: dict[str, tuple[int, int, int, int, Any, Any]] = {
    "rms_norm": (2, 4, 1, 1, lambda x, w: norm.rms_norm(x, w, EPS), lambda x, w: F.rms_norm(x, w.shape, w, EPS)),
    "add_rms_norm": (
        4, 5, 2, 1, lambda x, r, w: norm.add_rms_norm(x, r, w, EPS),
        lambda x, r, w: (F.rms_norm(total := x + r, w.shape, w, EPS), total),
    ),
    "silu_and_mul": (3, 5, 2, 0, gate.silu_and_mul, lambda x, up: F.silu(x) * up),
    "softmax": (2, 5, 1, 0, soft.softmax, lambda x: torch.softmax(x, -1)),
}  # fmt: skip


def _by_rows(name: str, rows: int, columns: int, device: str = "cuda") -> Job:
    passes, flops, arrays, weights, ours, theirs = BY_ROWS[name]
    sets = _sets(*arrays * [(rows, columns)], *weights * [(columns,)], device=device)
    return _elementwise(name, f"{rows} x {columns}", passes, flops, sets, ours, theirs, theirs)


rms_norm, add_rms_norm, silu_and_mul, softmax = (partial(_by_rows, name) for name in BY_ROWS)


def rope(tokens: int, heads: int, dim: int, device: str = "cuda") -> Job:
    positions = torch.arange(tokens, device=device)
    angles = positions[:, None].double() * 10000.0 ** (-torch.arange(0, dim, 2, device=device).double() / dim)
    cos, sin = angles.cos().float(), angles.sin().float()

    def torchs(x: torch.Tensor) -> torch.Tensor:
        c, s = (torch.cat([table, table], -1)[positions][:, None].to(x.dtype) for table in (cos, sin))
        a, b = x.chunk(2, -1)
        return x * c + torch.cat([-b, a], -1) * s  # as in transformers

    sets = _sets((tokens, heads, dim), device=device)
    return _elementwise(
        "rope", f"{tokens} x {heads} x {dim}", 2, 3, sets, lambda x: turn.rope(x, positions, cos, sin), torchs, torchs
    )


def store_kv(tokens: int, heads: int, dim: int, device: str = "cuda", block_size: int = 16) -> Job:
    """Tokens of many sequences: every block of a pool twice as large is as likely."""
    pool = torch.zeros(2, 2 * tokens // block_size, heads, block_size, dim, device=device, dtype=DTYPE)
    slots = torch.randperm(2 * tokens, device=device)[:tokens]
    block, offset = slots // block_size, slots % block_size

    def ours(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        store.store_kv(k, v, pool, slots)
        return pool

    def torchs(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        pool[0, block, :, offset] = k
        pool[1, block, :, offset] = v
        return pool

    def exact(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        want = torch.zeros_like(pool, dtype=torch.float64)
        want[0, block, :, offset] = k
        want[1, block, :, offset] = v
        return want

    sets = _sets((tokens, heads, dim), (tokens, heads, dim), device=device)
    return _elementwise("store_kv", f"{tokens} x {heads} x {dim}", 4, 0, sets, ours, torchs, exact)


def _sdpa(backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def flash_attention(tokens: int, heads: int, kv_heads: int, dim: int, device: str = "cuda") -> Job:
    sets = _sets((tokens, heads, dim), (tokens, kv_heads, dim), (tokens, kv_heads, dim), device=device)
    start = torch.tensor([0, tokens], device=device)
    theirs = [[x.transpose(0, 1)[None].contiguous() for x in qkv] for qkv in sets]  # (1, heads, tokens, dim): as torch likes it

    def ours(i: int, tiles: Tiles | None = None) -> torch.Tensor:
        q, k, v = sets[i]
        return flash.flash_attention(q, k, v, start, scale=dim**-0.5, max_query_len=tokens, tiles=tiles)

    def peer(i: int, backend: SDPBackend) -> torch.Tensor:
        q, k, v = theirs[i]
        return _sdpa(backend, q, k, v, causal=True)[0].transpose(0, 1)

    def exact() -> torch.Tensor:
        q, k, v = (x.transpose(0, 1) for x in sets[0])
        hidden = torch.ones(tokens, tokens, device=device, dtype=torch.bool).triu(1)
        heads_out = []
        for h in range(heads):  # one at a time: a score matrix of 8,192 tokens takes 0.5 GB
            scores = q[h].double() @ k[h * kv_heads // heads].double().T * dim**-0.5
            heads_out.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[h * kv_heads // heads].double())
        return torch.stack(heads_out, 1)

    cuts = [(128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2)]
    return Job(
        kernel="flash_attention", size=f"{tokens} tokens, {heads}/{kv_heads} x {dim}, causal",
        num_bytes=2 * (heads + kv_heads) * tokens * dim * DTYPE.itemsize, flops=4 * heads * dim * tokens * (tokens + 1) // 2,
        ceiling=GEMM, num_sets=len(sets), reference=exact, candidates=_cuts(ours, cuts),
        contenders={
            "torch SDPA flash": partial(peer, backend=SDPBackend.FLASH_ATTENTION),
            "torch SDPA cuDNN": partial(peer, backend=SDPBackend.CUDNN_ATTENTION),
        },
    )  # fmt: skip


def paged_decode(
    sequences: int, keys: int, heads: int, kv_heads: int, dim: int, device: str = "cuda", block_size: int = 16
) -> Job:
    """One new token a sequence over scattered blocks; torch's attention gets the same keys, laid out one after the other."""
    blocks = sequences * keys // block_size
    sets = _sets((sequences, heads, dim), (2, blocks, kv_heads, block_size, dim), device=device)
    tables = torch.randperm(blocks, device=device)
    start, table_start = (torch.arange(sequences + 1, device=device) * step for step in (1, keys // block_size))
    positions = torch.full((sequences,), keys - 1, device=device)

    def dense(pool: torch.Tensor) -> torch.Tensor:  # -> (2, sequences, kv_heads, keys, dim)
        return pool[:, tables].view(2, sequences, -1, kv_heads, block_size, dim).transpose(2, 3).flatten(3, 4).contiguous()

    theirs = [(q[:, :, None], *dense(pool)) for q, pool in sets]

    def ours(i: int, tiles: Tiles | None = None) -> torch.Tensor:
        q, pool = sets[i]
        lengths = {"max_query_len": 1, "max_context_len": keys}
        return paged.paged_attention(q, pool, positions, start, tables, table_start, scale=dim**-0.5, tiles=tiles, **lengths)

    def peer(i: int, backend: SDPBackend) -> torch.Tensor:
        q, k, v = theirs[i]
        return _sdpa(backend, q, k, v, causal=False)[:, :, 0]

    def exact() -> torch.Tensor:
        rows = []
        for q, k, v in zip(*theirs[0], strict=True):  # a sequence: q (heads, 1, dim), k and v (kv_heads, keys, dim)
            grouped = q.double().reshape(kv_heads, -1, dim)
            weights = (grouped @ k.double().transpose(1, 2) * dim**-0.5).softmax(-1)
            rows.append((weights @ v.double()).reshape(heads, dim))
        return torch.stack(rows)

    cuts = [(16, 64, 4, 3), (16, 64, 4, 5), (16, 64, 4, 7), (16, 128, 4, 3), (16, 128, 8, 5), (16, 32, 2, 5)]
    return Job(
        kernel="paged_attention", size=f"{sequences} x {keys} keys, {heads}/{kv_heads} x {dim}",
        num_bytes=2 * sequences * keys * kv_heads * dim * DTYPE.itemsize, flops=4 * sequences * keys * heads * dim,
        ceiling=COPY, num_sets=len(sets), reference=exact, candidates=_cuts(ours, cuts),
        contenders={
            "torch SDPA flash (not paged)": partial(peer, backend=SDPBackend.FLASH_ATTENTION),
            "torch SDPA cuDNN (not paged)": partial(peer, backend=SDPBackend.CUDNN_ATTENTION),
        },
    )  # fmt: skip


def int8_matmul(m: int, n: int, k: int, device: str = "cuda") -> Job:
    x, w = (torch.randint(-127, 128, (rows, k), device=device, dtype=torch.int8) for rows in (m, n))
    x_scale, w_scale = torch.rand(m, device=device) / 100, torch.rand(n, device=device) / 100

    def ours(i: int, tiles: Tiles = int8.TILES, depth: int = int8.DEPTH) -> torch.Tensor:
        return int8.int8_matmul(x, w, x_scale, w_scale, DTYPE, tiles=tiles, depth=depth)

    def torchs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (torch._int_mm(a, b.T).float() * x_scale[:, None] * w_scale).to(DTYPE)

    fast, wide_x, wide_w = compiled(torchs), x.to(DTYPE), w.to(DTYPE)
    cuts = [(128, 256, 8, 3), (128, 256, 8, 4), (128, 128, 4, 4), (128, 128, 8, 4), (256, 128, 8, 3), (64, 256, 4, 4)]
    return Job(
        kernel="int8_matmul", size=f"{m} x {n} x {k}", num_bytes=m * k + n * k + m * n * DTYPE.itemsize, flops=2 * m * n * k,
        ceiling=INT8, num_sets=1, candidates=_cuts(ours, cuts),
        reference=lambda: x.double() @ w.double().T * x_scale.double()[:, None] * w_scale.double(),
        contenders={
            "torch _int_mm, scaled": lambda i: torchs(x, w),
            "torch _int_mm, scaled, compiled": lambda i: fast(x, w),
            "torch bfloat16, the same shape": lambda i: F.linear(wide_x, wide_w) * x_scale.to(DTYPE)[:, None] * w_scale.to(DTYPE),
        },
    )  # fmt: skip


def _cuts(call: Callable[..., torch.Tensor], cuts: list[tuple[int, int, int, int]]) -> dict[str, Call]:
    made: dict[str, Call] = {}
    for rows, columns, warps, stages in cuts:
        tiles = Tiles(rows=rows, columns=columns, num_warps=warps, num_stages=stages)
        made[f"{rows} x {columns}, {warps} warps, {stages} stages"] = partial(call, tiles=tiles)
    return made
