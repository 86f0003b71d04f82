"""The pressure workload: everybody is served, prefixes are found, and the books of memory are told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labcore.bench.closed_loop import run_closed_loop
from labcore.bench.workload import PRESSURE
from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.engine.model_runner import ModelRunner
from labcore.engine.scheduler import Scheduler
from labcore.kv.paged_cache import PagedCache
from labcore.lab.faults import FAULTS
from labcore.model.weights import load_model


def scheduler_of(prefix_cache: str) -> Scheduler:
    return Scheduler(SchedulerConfig(), PagedCache(CacheConfig(num_blocks=512, prefix_cache=prefix_cache)))


def test_the_workload_is_the_one_of_the_story() -> None:
    prompts = PRESSURE.prompts(1024)
    assert (PRESSURE.seed, PRESSURE.num_clients, len(prompts), {len(p) for p in prompts}) == (0, 8, 320, {548})
    assert len({tuple(p[:528]) for p in prompts}) == 4 and len({tuple(p) for p in prompts}) == 320
    assert prompts == PRESSURE.prompts(1024)


@pytest.mark.parametrize("prefix_cache", ["radix", "hash"])
def test_everybody_is_served_and_prefixes_are_found(prefix_cache: str) -> None:
    scheduler = scheduler_of(prefix_cache)
    outcome = run_closed_loop(PRESSURE, scheduler)
    assert (outcome.finished, outcome.timeouts, outcome.num_empty_steps) == (320, 0, 0)
    assert outcome.hit_rate >= 0.96 and outcome.tokens_per_step >= 24
    assert scheduler.cache.num_used == 0
    assert outcome.hit_tokens <= 528 * outcome.hits  # nothing but prefixes
    # all that 320 requests of 555 computed tokens leave in whole blocks: 33 of each prefix, and one each
    assert scheduler.cache.prefix_cache.num_blocks == 4 * 33 + 320


def test_a_loop_twice_as_long_fills_the_pool_and_evicts() -> None:
    scheduler = scheduler_of("radix")
    outcome = run_closed_loop(replace(PRESSURE, num_requests=640), scheduler)
    assert (outcome.finished, outcome.timeouts) == (640, 0) and outcome.hit_rate >= 0.96 and outcome.tokens_per_step >= 24
    occupied = [used + cached for used, cached in zip(outcome.in_use, outcome.cached, strict=True)]
    assert max(occupied) >= 0.95 * 512 and scheduler.cache.prefix_cache.stats.evicted_tokens > 0


def test_without_a_cache_all_is_computed() -> None:
    outcome = run_closed_loop(PRESSURE, scheduler_of("none"))
    assert (outcome.finished, outcome.hits, outcome.num_tokens) == (320, 0, 320 * 555)


def test_a_cache_that_never_yields_stops_it() -> None:
    scheduler, _ = FAULTS["cache that never yields"].scheduler(num_blocks=512, prefix_cache="radix")
    outcome = run_closed_loop(replace(PRESSURE, num_requests=640), scheduler, most_steps=2000)
    assert outcome.timeouts > 0 and outcome.num_empty_steps > 1000 and scheduler.cache.num_used == 0


def test_a_model_may_stand_behind_it() -> None:
    model = load_model("lab")
    few = replace(PRESSURE, num_requests=6, num_clients=3, prefix_tokens=64)
    pool = EngineConfig(cache=CacheConfig(num_blocks=64, prefix_cache="radix"))
    scheduler = Scheduler(pool.scheduler, PagedCache(pool.cache))
    outcome = run_closed_loop(few, scheduler, ModelRunner(model, pool.cache).execute)
    assert (outcome.finished, outcome.timeouts) == (6, 0)
