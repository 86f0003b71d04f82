"""A token's logits have the same bits in any company: the whole model, for each kind of weight and pool.

The truth is a sequence alone, in one shot, in one block, on one thread, operator by operator. Against it: several sequences
together, each cut into chunks at random, their blocks scattered over the pool, on one to three threads, in one native call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ISAS, ids

from labcore.core.config import CacheConfig
from labcore.kernels.api import Array, ForwardBatch
from labcore.kernels.native import NativeBackend
from labcore.loaders.lab import lab_checkpoint
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model
from labcore.quant.int8 import quantize_int8
from labcore.quant.quantize import quantize

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")

KINDS = ["f32", "int8", "Q8_0", "Q4_1"]
LONGEST = 90  # crosses a tile of 64 keys


@cache
def model_of(kind: str, isa: str, threads: int) -> LlamaModel:
    """The lab model with its matrices in this form."""
    checkpoint = lab_checkpoint()
    make = {"f32": lambda w: w, "int8": quantize_int8}.get(kind, lambda w: quantize(kind, w))
    tensors = {name: make(t) if t.ndim == 2 else t for name, t in checkpoint.tensors.items()}
    return load_model(replace(checkpoint, tensors=tensors), backend=NativeBackend(isa=isa, threads=threads))


@dataclass
class Run:
    """A sequence on its way: what is known, what is computed, where its blocks are, the logits so far."""

    tokens: list[int]
    table: list[int]
    rows: list[np.ndarray]

    @property
    def left(self) -> int:
        return len(self.tokens) - len(self.rows)


def step(model: LlamaModel, kv: Array, block_size: int, shares: list[tuple[Run, int]]) -> None:
    """Compute the next tokens of several sequences in one batch, and keep the logits of every one."""
    spans = [range(len(run.rows), len(run.rows) + n) for run, n in shares]
    positions = [p for span in spans for p in span]
    slots = [
        run.table[p // block_size] * block_size + p % block_size
        for (run, _), span in zip(shares, spans, strict=True)
        for p in span
    ]
    batch = ForwardBatch(
        token_ids=ids([run.tokens[p] for (run, _), span in zip(shares, spans, strict=True) for p in span]),
        positions=ids(positions),
        query_start=ids(np.cumsum([0, *(n for _, n in shares)])),
        context_lens=ids([span.stop for span in spans]),
        block_tables=ids([block for run, _ in shares for block in run.table]),
        block_table_start=ids(np.cumsum([0, *(len(run.table) for run, _ in shares)])),
        slot_mapping=ids(slots),
        logits_indices=ids(np.arange(len(positions))),
    )
    logits = iter(model.forward(batch, kv))
    for run, n in shares:
        run.rows += [next(logits) for _ in range(n)]


def alone(model: LlamaModel, tokens: list[int], kv_dtype: str) -> np.ndarray:
    kv = model.new_kv_cache(CacheConfig.one_block(LONGEST, kv_dtype))
    return model.forward_by_operators(ForwardBatch.of_one_sequence(tokens), kv)


@pytest.mark.parametrize("kv_dtype", ["float32", "int8"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_logits_do_not_see_the_company(kind: str, kv_dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    isa, threads, block_size = str(rng.choice(ISAS)), int(rng.integers(1, 4)), int(rng.choice([1, 4, 16]))
    model, one = model_of(kind, isa, threads), model_of(kind, isa, 1)
    prompts = [list(map(int, rng.integers(0, 1024, rng.integers(1, LONGEST)))) for _ in range(rng.integers(1, 5))]
    blocks = list(rng.permutation(sum(-(-len(p) // block_size) for p in prompts) + 3))
    runs = [Run(p, [int(blocks.pop()) for _ in range(-(-len(p) // block_size))], []) for p in prompts]
    kv = model.new_kv_cache(
        CacheConfig(block_size=block_size, num_blocks=len(blocks) + sum(len(r.table) for r in runs), kv_dtype=kv_dtype)
    )
    if kv_dtype == "float32":
        kv[...] = np.nan  # what an earlier owner may have left
    while any(run.left for run in runs):
        waiting = [run for run in runs if run.left]
        chosen = [waiting[i] for i in rng.permutation(len(waiting))[: rng.integers(1, len(waiting) + 1)]]
        step(
            model,
            kv,
            block_size,
            [(run, int(rng.integers(1, min(run.left, int(rng.choice([1, 20, LONGEST]))) + 1))) for run in chosen],
        )
    for run in runs:
        assert np.array_equal(np.array(run.rows), alone(one, run.tokens, kv_dtype))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_call_is_the_operators_one_by_one(kind: str, isa: str) -> None:
    """Logits of chosen rows, and every byte of the pool; with several splits of 512 keys."""
    model = model_of(kind, isa, 2)
    tokens = list(map(int, np.random.default_rng(3).integers(0, 1024, 1100)))
    batch = replace(ForwardBatch.of_one_sequence(tokens), logits_indices=ids([1099, 0, 600]))
    pools = [model.new_kv_cache(CacheConfig.one_block(1100)) for _ in range(2)]
    assert np.array_equal(model.forward(batch, pools[0]), model.forward_by_operators(batch, pools[1]))
    assert pools[0].tobytes() == pools[1].tobytes()
    after = replace(ForwardBatch.of_one_sequence(tokens[:1], 1099), slot_mapping=ids([1099]))  # few items: splits are shared out
    assert np.array_equal(model.forward(after, pools[0]), model.forward_by_operators(after, pools[1]))
    assert np.array_equal(model.forward(after, pools[0]), model_of(kind, isa, 1).forward(after, pools[0]))
