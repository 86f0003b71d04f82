"""`labcore bench attention`: attention alone, where it is bound by memory and where it is bound by arithmetic.

Decode: one query over a long context, through the pools of all layers in turn, so that keys and values come from memory and not
from a cache; beside the time that reading them takes. Prefill: causal attention of a whole prompt, beside torch's
scaled_dot_product_attention on the same numbers, in turns.

    >>> bench_attention(rounds=3)["decode"][0]["share_of_floor"]       # doctest: +SKIP
    0.8
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from labcore.bench.ceilings import measure_ceilings, reader
from labcore.bench.harness import Goal, alternate, timed
from labcore.bench.stamp import stamp
from labcore.core.config import ModelConfig
from labcore.kernels.api import Array, Backend, ForwardBatch
from labcore.kernels.registry import get_backend

try:
    from labcore.bench import torch_calls
except ModuleNotFoundError:  # no torch
    torch_calls = None  # type: ignore[assignment]

CONTEXTS, PROMPTS, BLOCK_SIZE = (2048, 4096), (512, 2048), 16
SHARE_OF_FLOOR = 0.7
SMOLLM2 = ModelConfig(
    name="SmolLM2-135M", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3,
    head_dim=64, max_model_len=8192, rope_theta=1e5, rms_norm_eps=1e-5,
)  # fmt: skip


def scattered(context: int, new: int, seed: int = 0) -> ForwardBatch:
    """One sequence that asks from its last `new` positions; its blocks lie in any order in a pool just large enough."""
    num_blocks, positions = -(-context // BLOCK_SIZE), np.arange(context - new, context)
    table = np.random.default_rng(seed).permutation(num_blocks)
    return ForwardBatch(
        token_ids=np.zeros(new, np.int64),
        positions=positions,
        query_start=np.array([0, new]),
        context_lens=np.array([context]),
        block_tables=table,
        block_table_start=np.array([0, num_blocks]),
        slot_mapping=table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
        logits_indices=np.array([new - 1]),
    )


def pool_of(backend: Backend, config: ModelConfig, context: int, num_layers: int) -> Array:
    """A pool for one sequence of this context, every slot written."""
    num_blocks = -(-context // BLOCK_SIZE)
    pool = backend.new_kv_cache((num_layers, 2, num_blocks, config.num_kv_heads, BLOCK_SIZE, config.head_dim))
    keys = normal(num_blocks * BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    for layer in range(num_layers):
        backend.store_kv(keys, keys[::-1].copy(), pool[layer], np.arange(len(keys)))
    return pool


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


def decode_call(backend: Backend, config: ModelConfig, context: int) -> tuple[Callable[[], object], int]:
    """One token's attention in all layers, and the bytes of keys and values that it reads."""
    pool, batch = pool_of(backend, config, context, config.num_layers), scattered(context, 1)
    q = normal(1, config.num_heads, config.head_dim)

    def call() -> None:
        for layer in range(config.num_layers):
            backend.paged_attention(q, pool[layer], batch, config.head_dim**-0.5)

    return call, context * config.kv_bytes_per_token()


def prefill_calls(backend: Backend, config: ModelConfig, tokens: int, threads: int) -> dict[str, Callable[[], object]]:
    """Causal attention of a prompt in one layer: ours over its pages, and torch's, if there is torch."""
    pool, batch = pool_of(backend, config, tokens, 1), scattered(tokens, tokens)
    q, k = normal(tokens, config.num_heads, config.head_dim), normal(tokens, config.num_kv_heads, config.head_dim)
    calls: dict[str, Callable[[], object]] = {
        "labcore": lambda: backend.paged_attention(q, pool[0], batch, config.head_dim**-0.5)
    }
    if torch_calls is not None:
        torch_calls.use_threads(threads)
        calls["torch SDPA"] = torch_calls.causal_attention(q, k, k[::-1].copy())
    return calls


def bench_attention(config: ModelConfig = SMOLLM2, *, threads: int | None = None, rounds: int = 5) -> dict[str, Any]:
    """Decode at CONTEXTS with its share of the floor, prefill at PROMPTS with the ratio to torch, and the goals."""
    ceilings, backend = measure_ceilings(threads), get_backend(threads=threads)
    decode = []
    for context in CONTEXTS:
        call, num_bytes = decode_call(backend, config, context)
        calls = {"labcore": call, "reading memory": reader(ceilings.threads, num_bytes)}
        run = alternate({name: timed(one, seconds=0.1) for name, one in calls.items()}, rounds=rounds)
        floor = min(run.timings["reading memory"].best, ceilings.floor(bytes=num_bytes))
        seconds = run.timings["labcore"].p50
        share = {"floor": floor, "share_of_floor": floor / seconds}
        decode.append({"context": context, "bytes": num_bytes, "seconds": seconds, **share, **run.document()})
    prefill = []
    for tokens in PROMPTS:
        calls = prefill_calls(backend, config, tokens, ceilings.threads)
        run = alternate({name: timed(one, seconds=0.1) for name, one in calls.items()}, rounds=rounds)
        ratio = run.ratio("labcore", "torch SDPA") if "torch SDPA" in calls else None
        flops = 4 * config.q_size * tokens * (tokens + 1) // 2
        prefill.append(
            {"tokens": tokens, "flops": flops, "seconds": run.timings["labcore"].p50, "times_torch": ratio, **run.document()}
        )
    goals = [
        Goal(name=f"decode over {row['context']} tokens: share of the floor", value=row["share_of_floor"], bound=SHARE_OF_FLOOR)
        for row in decode
    ]
    return {
        "stamp": stamp(("torch",)),
        "threads": ceilings.threads,
        "ceilings": ceilings.document(),
        "decode": decode,
        "prefill": prefill,
        "goals": [goal.document() for goal in goals],
    }
