"""`labcore bench sampling`: what choosing tokens costs, beside the decode step that made their logits.

Both in turns within one run: a step of the model for so many sequences, and a draw from each of its rows by the native kernel:
greedy, by temperature alone, and with all filters and a penalty on every token of the context.

    >>> bench_sampling(rounds=3)["batches"]["32"]["shares"]["greedy"]       # of a step       # doctest: +SKIP
    0.01
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from labcore.bench.harness import Goal, alternate, timed
from labcore.bench.quality import TEXT
from labcore.bench.stamp import stamp
from labcore.core.config import CacheConfig
from labcore.kernels.api import ForwardBatch
from labcore.kernels.native import NativeBackend
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model

BATCHES, CONTEXT = (1, 8, 32), 128
STEP = "decode step"
RULES = {"greedy": (0.0, 0, 1.0, 0.0), "temperature": (1.0, 0, 1.0, 0.0), "all filters": (0.8, 50, 0.95, 0.02)}
LIMITS = {"greedy": 0.03, "temperature": 0.1, "all filters": 0.1}  # shares of a step
PENALTY = 0.5


def bench_sampling(model: str = "smollm2", *, rounds: int = 5, threads: int | None = None) -> dict[str, Any]:
    """By batch: seconds of a step and of each way to draw, and their shares. Raises BackendUnavailable: no native kernels."""
    backend = NativeBackend(threads=threads)
    loaded = load_model(model, backend=backend)
    batches = {str(n): _batch(loaded, backend, n, rounds) for n in BATCHES}
    goals = [
        Goal(name=f"{name}, batch {n}: share of a step", value=share, bound=LIMITS[name], at_least=False)
        for n, found in batches.items()
        for name, share in found["shares"].items()
    ]
    return {
        "stamp": stamp(), "model": model, "context": CONTEXT, "threads": backend.threads, "batches": batches,
        "goals": [goal.document() for goal in goals],
    }  # fmt: skip


def _batch(model: LlamaModel, backend: NativeBackend, num_seqs: int, rounds: int) -> dict[str, Any]:
    known = np.array(model.tokenizer.encode(TEXT.read_text(encoding="utf-8")), np.int64)
    contexts = np.stack([np.roll(known, -7 * i)[:CONTEXT] for i in range(num_seqs)])
    pool = model.new_kv_cache(CacheConfig(block_size=CONTEXT, num_blocks=num_seqs))
    model.forward(last_tokens(contexts, CONTEXT), pool)
    step = last_tokens(contexts, 1)
    logits = model.forward(step, pool)
    u = np.random.default_rng(num_seqs).random(num_seqs)
    penalised = [np.unique(row) for row in contexts]
    values = [row[own].astype(np.float64) - PENALTY for row, own in zip(logits, penalised, strict=True)]
    samples = {STEP: timed(lambda: model.forward(step, pool), seconds=0.1)}
    for name, rules in RULES.items():
        numbers = [np.full(num_seqs, rule, np.int64 if isinstance(rule, int) else np.float64) for rule in rules]
        if name == "all filters":
            edits = np.cumsum([0, *map(len, penalised)]), np.concatenate(penalised), np.concatenate(values)
        else:
            edits = np.zeros(num_seqs + 1, np.int64), np.array([], np.int64), np.array([], np.float64)
        arguments = [logits, *numbers, u, *edits]
        samples[name] = timed(partial(backend.draw, *arguments))
    comparison = alternate(samples, rounds=rounds)
    return comparison.document() | {"shares": {name: comparison.ratio(name, STEP) for name in RULES}}


def last_tokens(contexts: np.ndarray, num: int) -> ForwardBatch:
    """The last tokens of each of these sequences (num_seqs, context), each in a block of its own that is as long."""
    num_seqs, length = contexts.shape
    positions = np.tile(np.arange(length - num, length), num_seqs)
    each = np.arange(num_seqs + 1)
    return ForwardBatch(
        token_ids=contexts[:, length - num :].ravel(), positions=positions, query_start=each * num,
        context_lens=np.full(num_seqs, length), block_tables=each[:-1], block_table_start=each,
        slot_mapping=np.repeat(each[:-1] * length, num) + positions, logits_indices=each[1:] * num - 1,
    )  # fmt: skip
