"""The radix tree finds what a dictionary of prefixes finds, keeps what is held, and gives up the oldest leaf first."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from oracle import advance, drain, execute, make_scheduler, make_sequence
from prefix_model import PrefixMachine

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.scheduler import Scheduler
from labcore.kv.block_allocator import BlockAllocator
from labcore.kv.prefix_cache import Domain
from labcore.kv.radix_cache import RadixCache
from labcore.lab.faults import LockSkipsTheMatchedNode, NoCapOnTheHit


class RadixMachine(PrefixMachine):
    make = RadixCache


TestRadixMachine = RadixMachine.TestCase
TestRadixMachine.settings = settings(max_examples=150, stateful_step_count=30)


def test_the_machine_finds_a_lock_that_skips_the_matched_node() -> None:
    class Faulty(PrefixMachine):
        make = LockSkipsTheMatchedNode

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Faulty, settings=settings(max_examples=50, stateful_step_count=30, phases=[Phase.generate]))


def filled(*prompts: list[int], num_blocks: int = 16, size: int = 2) -> tuple[BlockAllocator, RadixCache]:
    """A tree of prompts that came one after the other and left."""
    pool = BlockAllocator(num_blocks)
    cache = RadixCache(pool, size)
    for prompt in prompts:
        table = cache.match(prompt)
        table += pool.allocate(len(prompt) // size - len(table))
        cache.insert(prompt, table)
        pool.free(table)
        cache.check()
    return pool, cache


def edges(cache: RadixCache) -> list[tuple[list[int], list[int]]]:
    return sorted((node.tokens, node.blocks) for node in cache.nodes())


def test_an_edge_splits_where_two_prompts_part() -> None:
    _, cache = filled([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8])
    assert edges(cache) == [([1, 2, 3, 4], [0, 1]), ([5, 6], [2]), ([7, 8], [3])]


def test_two_that_part_within_a_block_share_nothing_of_it() -> None:
    _, cache = filled([1, 2, 3, 4], [1, 2, 3, 5])
    assert edges(cache) == [([1, 2], [0]), ([3, 4], [1]), ([3, 5], [2])]
    assert cache.match_length([1, 2, 3, 9]) == 2


def test_a_leaf_grows_in_place_and_is_cut_back_a_block_at_a_time() -> None:
    _, cache = filled([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8])
    assert edges(cache) == [([1, 2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 3])]
    for left in (3, 2, 1):
        assert cache.evict(1) == 1
        assert edges(cache) == [(list(range(1, 2 * left + 1)), list(range(left)))]
        cache.check()
    assert (cache.evict(5), edges(cache)) == (1, [])


def test_the_prefix_that_was_used_last_is_given_up_last() -> None:
    pool, cache = filled([1, 1, 2, 2], [3, 3, 4, 4])
    pool.free(cache.match([1, 1, 2, 2]))  # asked for again
    assert cache.evict(2) == 2
    assert (cache.match_length([1, 1, 2, 2]), cache.match_length([3, 3, 4, 4])) == (4, 0)


def test_a_second_computation_of_the_same_tokens_is_given_back() -> None:
    """Two that ran at the same time computed the same: the tree keeps the first, and the second table holds it from then on."""
    pool = BlockAllocator(4)
    cache = RadixCache(pool, 2)
    one, two = pool.allocate(2), pool.allocate(2)
    cache.insert([1, 2, 3, 4], one)
    cache.insert([1, 2, 3, 4], two)
    assert (one, two, pool.num_free) == ([0, 1], [0, 1], 2)
    assert [pool.refcount(block) for block in range(4)] == [3, 3, 0, 0]


def test_a_locked_path_is_not_given_up() -> None:
    """Hazard A07: insert [1..8], lock it, ask for all blocks; then the same with a lock that begins at the parent."""
    pool, cache = filled([1, 2, 3, 4, 5, 6, 7, 8])
    held = cache.match([1, 2, 3, 4, 5, 6, 7, 8])
    assert (cache.evict(4), pool.num_idle, len(held)) == (0, 0, 4)
    pool.free(held)
    assert (pool.num_idle, cache.evict(4)) == (4, 4)

    pool = BlockAllocator(8)
    faulty = LockSkipsTheMatchedNode(pool, 2)
    table = pool.allocate(4)
    faulty.insert([1, 2, 3, 4, 5, 6, 7, 8], table)
    pool.free(table)
    held = faulty.match([1, 2, 3, 4, 5, 6, 7, 8])
    assert faulty.evict(4) == 4, "the fault would go unseen"


@pytest.mark.parametrize("prefix_cache", ["radix", "hash"])
def test_one_token_of_a_prompt_that_is_all_cached_is_computed(prefix_cache: str) -> None:
    """Hazard A05: a prompt of two whole blocks, twice; then a longer one that shares them."""
    scheduler, records = make_scheduler(16, 4, prefix_cache)
    for name, prompt in (("a", list(range(1, 9))), ("b", list(range(1, 9))), ("c", list(range(1, 13)))):
        scheduler.add(make_sequence(name, prompt, len(prompt) + 1))
        drain(scheduler)
    assert [(r.hit_tokens, r.num_tokens) for r in records] == [(0, 8), (4, 4), (8, 4)]


def test_without_the_cap_a_step_samples_from_nothing() -> None:
    records: list[StepRecord] = []
    cache = NoCapOnTheHit(CacheConfig(num_blocks=16, block_size=4, prefix_cache="radix"))
    scheduler = Scheduler(SchedulerConfig(), cache, records.append)
    for name in "ab":
        scheduler.add(make_sequence(name, list(range(1, 9)), 10))
        plan = scheduler.schedule()
        scheduler.update(plan, execute(plan))
    assert [(share.request_id, share.num_tokens, bool(share.sampled)) for share in records[1].scheduled] == [
        ("a", 1, True), ("b", 0, True),
    ]  # fmt: skip


@pytest.mark.parametrize("prefix_cache", ["radix", "hash"])
def test_a_failed_admission_gives_its_locks_back(prefix_cache: str) -> None:
    """Hazard A04: the prefix hits, the rest does not fit, ten times; then the request is given up."""
    scheduler, _ = make_scheduler(8, 4, prefix_cache, watermark_blocks=0)
    scheduler.add(make_sequence("a", list(range(1, 14)), 14))
    drain(scheduler)
    scheduler.add(make_sequence("b", [50 + i for i in range(20)], 28))
    advance(scheduler)
    counts = [scheduler.cache.allocator.refcount(block) for block in range(8)]
    scheduler.add(make_sequence("c", [*range(1, 13), *range(90, 100)], 30))
    for _ in range(10):
        assert not scheduler._admit(scheduler.waiting[0])
        assert [scheduler.cache.allocator.refcount(block) for block in range(8)] == counts
    scheduler.abort("c")
    drain(scheduler)
    assert scheduler.cache.num_used == 0


def test_domains_have_trees_of_their_own() -> None:
    """Hazard A06: an adapter and a salt of one name share nothing."""
    pool = BlockAllocator(8)
    cache = RadixCache(pool, 2)
    table = pool.allocate(2)
    cache.insert([1, 2, 3, 4], table, Domain(adapter="X"))
    assert cache.match_length([1, 2, 3, 4], Domain(adapter="X")) == 4
    for other in (Domain(), Domain(salt="X"), Domain("X", "X"), Domain(salt="X", adapter=""), Domain(adapter="x")):
        assert cache.match_length([1, 2, 3, 4], other) == 0
