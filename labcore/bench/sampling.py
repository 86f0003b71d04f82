"""`labcore bench sampling`: what choosing tokens costs, beside the decode step that made their logits.

Both in turns within one run: a step of the model for so many sequences, and what the engine does behind it to choose a token from
each of its rows: greedy, by temperature alone, and with all filters and all penalties on every token of the context. Each choice
is made right behind a step of its own, which has put other things into the caches. Limits: a context of 128 tokens; patterns,
lists of allowed tokens and log-probabilities cost more and are not measured.

    >>> bench_sampling(rounds=3)["batches"]["32"]["shares"]["greedy"]       # of a step       # doctest: +SKIP
    0.01
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from labcore.bench.harness import Goal, Sample, alternate, timed
from labcore.bench.quality import TEXT
from labcore.bench.stamp import stamp
from labcore.core.config import CacheConfig
from labcore.engine.sampler import Place, Sampler
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.sequence import FinishReason, Sequence
from labcore.kernels.api import ForwardBatch
from labcore.kernels.native import NativeBackend
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model

BATCHES, CONTEXT = (1, 8, 32), 128
STEP = "decode step"
SECONDS = 0.2  # of a round
FILTERS = {"top_k": 50, "top_p": 0.95, "min_p": 0.02}
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.1}
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "all filters": {"temperature": 0.8} | FILTERS | PENALTIES,
}
LIMITS = {"greedy": 0.03, "temperature": 0.1, "all filters": 0.1}  # shares of a step


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
    sampler = Sampler(backend)
    samples = {STEP: timed(lambda: model.forward(step, pool), seconds=SECONDS)}
    for name, rules in RULES.items():
        params = SamplingParams(**rules)
        sequences = [
            Sequence(
                request_id=str(i), token_ids=row.tolist(), num_prompt_tokens=CONTEXT // 2, params=params, seed=i,
                stop_token_ids=frozenset(), max_length=2 * CONTEXT, length_reason=FinishReason.LENGTH,
            )
            for i, row in enumerate(contexts)
        ]  # fmt: skip
        samples[name] = _behind(lambda: model.forward(step, pool), sampler, sequences)
    comparison = alternate(samples, rounds=rounds)
    return comparison.document() | {"shares": {name: comparison.ratio(name, STEP) for name in RULES}}


def _behind(forward: Callable[[], np.ndarray], sampler: Sampler, sequences: list[Sequence]) -> Sample:
    """Steps, of which the choice behind each is timed."""

    def sample() -> list[float]:
        clock = time.perf_counter
        times: list[float] = []
        end = clock() + SECONDS
        while not times or clock() < end:
            logits = forward()
            begun = clock()
            sampler.choose(logits, [Place.behind(sequence, row, ()) for row, sequence in enumerate(sequences)])
            times.append(clock() - begun)
        return times

    return sample


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
