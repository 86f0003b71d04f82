"""The report says who holds what, finds what is planted, and changes nothing."""

from __future__ import annotations

from labcore.core.config import CacheConfig
from labcore.debug.invariants import FREE, IDLE, USED, Report, report
from labcore.kv.paged_cache import PagedCache


def pool() -> tuple[PagedCache, dict[str, list[int]]]:
    """Six blocks of 4: a and b share two cached ones, a has one more; one is idle, two are free."""
    cache = PagedCache(CacheConfig(block_size=4, num_blocks=6, prefix_cache="radix"))
    a: list[int] = []
    cache.reserve(a, 0, 12)
    cache.keep(range(12), a)
    cache.release(a)
    a = cache.match_prefix(range(9))
    b = cache.match_prefix([*range(8), 99])
    cache.reserve(a, 8, 9)
    return cache, {"a": a, "b": b}


def states(told: Report) -> list[str]:
    return [block.state for block in told.blocks]


def test_every_block_is_told_with_its_holders() -> None:
    cache, tables = pool()
    told = report(cache, tables)
    assert told.balanced and states(told) == [USED, USED, IDLE, USED, FREE, FREE]
    assert [block.holders for block in told.blocks] == [("a", "b"), ("a", "b"), (), ("a",), (), ()]
    assert str(told).splitlines() == [
        "6 blocks: 2 free, 1 idle in the cache, 3 used",
        "  0  used by a, b and kept by the cache", "  1  used by a, b and kept by the cache", "  2  idle", "  3  used by a",
        "every book balances",
    ]  # fmt: skip


def test_a_lost_block_and_a_borrowed_one_are_told() -> None:
    cache, tables = pool()
    told = report(cache, {"a": tables["a"]})  # b has forgotten what it holds
    assert [block.block for block in told.blocks if "it is lost" in block.fault] == [0, 1]
    tables["c"] = [3]  # c writes into a block of a without having asked
    told = report(cache, tables)
    assert told.blocks[3].fault == "1 references, and 2 hold it: it may be given to somebody else"
    assert "pool: references are lost or held by nobody" in told.faults
    cache.allocator.free([3])  # and gives it back while a still has it
    told = report(cache, tables)
    assert not told.balanced and "0 references" in told.blocks[3].fault


def test_a_table_with_a_block_twice_is_told() -> None:
    cache, tables = pool()
    tables["a"].append(tables["a"][0])
    assert report(cache, tables).blocks[0].fault == "a table has it twice"


def test_looking_changes_nothing() -> None:
    cache, tables = pool()
    before = str(report(cache, tables))
    assert str(report(cache, tables)) == before
    cache.check(tables.values())


def test_a_block_that_does_not_exist_is_told() -> None:
    cache, tables = pool()
    told = report(cache, tables | {"c": [99]})
    assert "c: holds block 99, which is not in the pool" in told.faults and not told.balanced
