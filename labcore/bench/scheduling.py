"""`labcore bench scheduling`: what deciding costs, beside what is decided on.

A step of the scheduler over an oracle, with records and without, for ever more running sequences; its share of a whole step of a
real model; and what the books of memory cost a token as pool and tree grow: it should not be more.

    >>> bench_scheduling(rounds=3)["overhead"]["256"]["recorded"]       # seconds a step       # doctest: +SKIP
    0.0009
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labcore.bench.harness import Goal, alternate
from labcore.bench.oracle import same_token, sequence
from labcore.bench.stamp import stamp
from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.scheduler import Scheduler
from labcore.kernels.registry import get_backend
from labcore.kv.block_allocator import BlockAllocator
from labcore.kv.hash_cache import HashCache
from labcore.kv.paged_cache import PagedCache
from labcore.kv.prefix_cache import MakeCache
from labcore.kv.radix_cache import RadixCache
from labcore.model.weights import load_model

RUNNING, BATCHES = (16, 64, 256), (1, 8, 32)
POOLS, CACHED_TOKENS = (1_000, 10_000, 100_000), (10_000, 100_000, 1_000_000)
BLOCK_SIZE, PROMPT, STEPS = 16, 512, 64
CACHES: dict[str, MakeCache] = {"radix": RadixCache, "hash": HashCache}


def bench_scheduling(model: str = "smollm2", *, rounds: int = 5, threads: int | None = None) -> dict[str, Any]:
    overhead = {str(n): _overhead(n, rounds) for n in RUNNING}
    share = dict(_shares(model, threads))
    growth = {"allocator": {str(n): allocator_cost(n, rounds) for n in POOLS}} | {
        name: {str(n): cache_cost(make, n, rounds) for n in CACHED_TOKENS} for name, make in CACHES.items()
    }
    largest, smaller = overhead["256"]["recorded"], overhead["64"]["recorded"]
    limits = {
        "256 running, recorded: ms a step": (1e3 * largest, 1.2),
        "256 running over 4 times 64": (largest / smaller / 4, 1.25),
        **{f"share of a step of {model}, batch {n}": (value, 0.02) for n, value in share.items()},
        **{f"{name}: largest over smallest": (max(cost.values()) / min(cost.values()), 2.5) for name, cost in growth.items()},
    }
    goals = [Goal(name=name, value=value, bound=bound, at_least=False) for name, (value, bound) in limits.items()]
    return {
        "stamp": stamp(), "model": model, "overhead": overhead, "share": {str(n): value for n, value in share.items()},
        "growth": growth, "goals": [goal.document() for goal in goals],
    }  # fmt: skip


def _overhead(num_running: int, rounds: int) -> dict[str, float]:
    """Seconds of schedule and update together, in a decode step of so many sequences."""

    def sample(observer: Callable[[StepRecord], None] | None) -> Callable[[], list[float]]:
        def once() -> list[float]:
            pool = CacheConfig(num_blocks=num_running * 8, prefix_cache="radix")
            limits = SchedulerConfig(max_num_seqs=num_running, max_num_batched_tokens=num_running * 32)
            scheduler = Scheduler(limits, PagedCache(pool), observer)
            for i in range(num_running):
                scheduler.add(sequence(str(i), [i + 2] * 32, STEPS))
            return _step_seconds(scheduler)

        return once

    comparison = alternate({"recorded": sample(lambda record: None), "unrecorded": sample(None)}, rounds=rounds)
    return {name: timing.p50 for name, timing in comparison.timings.items()}


def _step_seconds(scheduler: Scheduler) -> list[float]:
    """Of all steps but the first, in which all are admitted, and the last."""
    times = []
    while scheduler.has_unfinished:
        begun = time.perf_counter()
        plan = scheduler.schedule()
        decided = time.perf_counter() - begun
        sampled = same_token(plan)
        begun = time.perf_counter()
        scheduler.update(plan, sampled)
        times.append(decided + time.perf_counter() - begun)
    return times[1:-1]


def _shares(model: str, threads: int | None) -> Iterator[tuple[int, float]]:
    """By batch, the share of scheduling and booking in a decode step of the engine, records on, a prefix cache behind it."""
    loaded = load_model(model, backend=get_backend(threads=threads))
    for batch in BATCHES:
        engine = LLMEngine(loaded, EngineConfig(cache=CacheConfig(prefix_cache="radix")), lambda record: None)
        spent = 0.0

        def timed(call: Callable[..., Any]) -> Callable[..., Any]:
            def once(*arguments: Any) -> Any:
                nonlocal spent
                begun = time.perf_counter()
                result = call(*arguments)
                spent += time.perf_counter() - begun
                return result

            return once

        scheduler: Any = engine.scheduler
        scheduler.schedule, scheduler.update = timed(scheduler.schedule), timed(scheduler.update)
        for i in range(batch):
            engine.add_request(str(i), [i + 300] * 32, SamplingParams(max_tokens=34, temperature=0.0, ignore_eos=True))
        engine.step()
        shares = []
        for _ in range(32):
            spent, begun = 0.0, time.perf_counter()
            engine.step()
            shares.append(spent / (time.perf_counter() - begun))
        yield batch, statistics.median(shares)


def allocator_cost(num_blocks: int, rounds: int) -> float:
    """Seconds a block, taken and given back, with most of the pool in use."""
    pool = BlockAllocator(num_blocks)
    pool.allocate(num_blocks - 512)

    def once() -> float:
        begun = time.perf_counter()
        pool.free(pool.allocate(512))
        return (time.perf_counter() - begun) / 512

    return min(statistics.median(once() for _ in range(200)) for _ in range(rounds))


def cache_cost(make: MakeCache, num_tokens: int, rounds: int) -> float:
    """Seconds a token for a prompt that is inserted, found again and evicted, with so many tokens in the cache."""
    rng = np.random.default_rng(num_tokens)
    pool = BlockAllocator(num_tokens // BLOCK_SIZE + PROMPT // BLOCK_SIZE)
    cache = make(pool, BLOCK_SIZE)
    shared = rng.integers(0, 1000, PROMPT // 2).tolist()

    def prompt() -> list[int]:
        return shared + rng.integers(0, 1000, PROMPT // 2).tolist()

    def put(tokens: list[int]) -> None:
        table = cache.match(tokens)
        missing = PROMPT // BLOCK_SIZE - len(table)
        if pool.num_free < missing:
            cache.evict(missing - pool.num_free)
        table += pool.allocate(missing)
        cache.insert(tokens, table)
        pool.free(table)

    while cache.num_blocks < num_tokens // BLOCK_SIZE:
        put(prompt())

    def once() -> float:
        prompts = [prompt() for _ in range(100)]
        begun = time.perf_counter()
        for tokens in prompts:
            put(tokens)
        return (time.perf_counter() - begun) / (len(prompts) * PROMPT)

    return min(once() for _ in range(rounds))
