"""Scheduling never changes the output: batched, chunked, preempted, late, on any number of threads, to the last bit.

Each workload is run request by request, in one shot, in an ample pool: that is the truth. Then all together, under a random
chunk limit, budget, pool and order of arrival. Tokens, text, reasons and every bit of every logits row must be equal;
`check()` runs after every step and no block may be left at the end (support.run_engine).
"""

from __future__ import annotations

import numpy as np
import pytest
from support import ISAS, Answer, Request, alone, random_requests, run_engine

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.native import NativeBackend
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model

NUM_WORKLOADS = 200
CHUNKS = [1, 3, 16, 64, None]


def workloads(count: int) -> list[list[Request]]:
    return [random_requests(np.random.default_rng(seed), vocab_size=1024, longest=24, max_new=16) for seed in range(count)]


def run_randomly(model: LlamaModel, requests: list[Request], seed: int) -> tuple[list[Answer], int]:
    """All requests together under limits drawn from `seed`; returns the answers and the number of preemptions."""
    rng = np.random.default_rng(10_000 + seed)
    block_size = int(rng.choice([1, 4, 16]))
    need = max(-(-(len(r.prompt) + r.params.max_tokens) // block_size) for r in requests)
    cache = CacheConfig(block_size=block_size, num_blocks=int(need * rng.choice([1, 1.2, 1.5, 4])))
    scheduler = SchedulerConfig(
        max_num_batched_tokens=int(rng.choice([2, 17, 512])), max_num_seqs=int(rng.choice([2, 32])),
        max_chunk_tokens=CHUNKS[seed % len(CHUNKS)], watermark_blocks=int(rng.choice([0, 0, 1])),
    )  # fmt: skip
    arrivals = [int(a) for a in rng.integers(0, 8, len(requests))]
    answers, records = run_engine(model, requests, cache=cache, scheduler=scheduler, arrivals=arrivals)
    return answers, sum(len(record.preempted) for record in records)


@pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")
@pytest.mark.parametrize("isa", ISAS)
def test_scheduling_never_changes_the_output(isa: str) -> None:
    """200 workloads on this instruction set, each alone and then together on 1, 2 and 3 threads: difference 0.0."""
    models = {threads: load_model("lab", backend=NativeBackend(isa=isa, threads=threads)) for threads in (1, 2, 3)}
    preemptions = 0
    for seed, requests in enumerate(workloads(NUM_WORKLOADS)):
        truth = [alone(models[1], request) for request in requests]
        for threads, model in models.items():
            answers, preempted = run_randomly(model, requests, seed * 3 + threads)
            assert answers == truth, f"workload {seed} on {threads} threads"
            preemptions += preempted
    assert preemptions > NUM_WORKLOADS  # the pools were tight enough to say something about preemption


def test_the_reference_is_exact_too() -> None:
    model = load_model("lab", backend="reference")
    for seed, requests in enumerate(workloads(6)):
        assert run_randomly(model, requests, seed)[0] == [alone(model, request) for request in requests]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunked_equals_one_shot(exact_lab_model: LlamaModel, chunk: int | None) -> None:
    """One long prompt, whose chunks cross tiles and blocks."""
    rng = np.random.default_rng(7)
    request = Request(tuple(map(int, rng.integers(0, 1024, 150))), SamplingParams(max_tokens=4, temperature=0.0))
    answers, records = run_engine(
        exact_lab_model,
        [request],
        cache=CacheConfig(block_size=16, num_blocks=10),
        scheduler=SchedulerConfig(max_chunk_tokens=chunk),
    )
    assert answers == [alone(exact_lab_model, request)]
    assert len(records) == -(-150 // (chunk or 150)) + 3  # a step per chunk; the last of them gives the first of 4 tokens


def test_preempted_equals_never_preempted(exact_lab_model: LlamaModel) -> None:
    """Four requests grow in a pool that holds two of them: sequences are thrown out, come back, and say the same."""
    rng = np.random.default_rng(3)
    requests = [
        Request(
            tuple(map(int, rng.integers(0, 1024, 12))), SamplingParams(max_tokens=12, temperature=0.9, seed=i, ignore_eos=True)
        )
        for i in range(4)
    ]
    answers, records = run_engine(
        exact_lab_model, requests, cache=CacheConfig(block_size=4, num_blocks=12), scheduler=SchedulerConfig(watermark_blocks=0)
    )
    assert answers == [alone(exact_lab_model, request) for request in requests]
    assert sum(len(record.preempted) for record in records) >= 2
