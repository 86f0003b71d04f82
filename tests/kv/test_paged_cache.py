"""Tables grow out of free blocks, then cached ones; a hit never covers the whole prompt."""

from __future__ import annotations

import pytest

from labcore.core.config import CacheConfig
from labcore.core.errors import OutOfBlocks
from labcore.kv.block_table import blocks_for, slots
from labcore.kv.paged_cache import PagedCache


def test_grow_takes_all_or_nothing() -> None:
    cache = PagedCache(CacheConfig(block_size=4, num_blocks=3))
    table: list[int] = []
    cache.reserve(table, 0, 5)
    assert len(table) == 2
    with pytest.raises(OutOfBlocks):
        cache.reserve(table, 0, 17)
    assert len(table) == 2
    cache.check([table])
    cache.release(table)
    assert (table, cache.num_available) == ([], 3)


def test_cached_blocks_yield_when_free_ones_run_out() -> None:
    cache = PagedCache(CacheConfig(block_size=4, num_blocks=4, prefix_cache="radix"))
    table: list[int] = []
    cache.reserve(table, 0, 12)
    cache.keep(range(12), table)
    cache.release(table)
    assert (cache.allocator.num_free, cache.allocator.num_idle, cache.num_available, cache.num_used) == (1, 3, 4, 0)
    cache.reserve(table, 0, 12)
    assert (cache.prefix_cache.num_blocks, cache.num_used) == (1, 3)
    cache.check([table])


@pytest.mark.parametrize(("length", "hit"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3)])
def test_one_token_is_always_left_to_compute(length: int, hit: int) -> None:
    cache = PagedCache(CacheConfig(block_size=4, num_blocks=8, prefix_cache="radix"))
    table: list[int] = []
    cache.reserve(table, 0, 16)
    cache.keep(range(16), table)
    assert len(cache.match_prefix(range(length))) == hit


def test_check_notices_a_lost_reference() -> None:
    cache = PagedCache(CacheConfig(block_size=4, num_blocks=4))
    table: list[int] = []
    cache.reserve(table, 0, 8)
    with pytest.raises(AssertionError, match="references"):
        cache.check([table[:1]])


def test_slots_follow_the_table() -> None:
    assert slots([7, 3], range(15, 18), 16) == [127, 48, 49]
    assert [blocks_for(n, 16) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
