"""The hash table finds what a dictionary of prefixes finds; its keys stand for whole prefixes; it agrees with the radix tree."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from prefix_model import DOMAINS, TOKENS, PrefixMachine

from labcore.core.config import CacheConfig
from labcore.core.errors import OutOfBlocks
from labcore.kv.block_allocator import BlockAllocator
from labcore.kv.hash_cache import HashCache
from labcore.kv.paged_cache import PagedCache
from labcore.kv.prefix_cache import ANYONE, Domain


class HashMachine(PrefixMachine):
    make = HashCache


TestHashMachine = HashMachine.TestCase
TestHashMachine.settings = settings(max_examples=150, stateful_step_count=30)


def keys(tokens: list[int], domain: Domain = ANYONE, size: int = 2) -> list[bytes]:
    return list(HashCache(BlockAllocator(1), size).keys(tokens, domain))


def test_a_key_stands_for_the_whole_prefix() -> None:
    assert keys([1, 2, 3, 4])[:1] == keys([1, 2, 9, 9])[:1] == keys([1, 2, 9])
    assert keys([1, 2, 3, 4])[1] != keys([5, 6, 3, 4])[1]  # the same block behind another
    assert keys([1, 2, 3, 4, 3, 4])[1] != keys([1, 2, 3, 4, 3, 4])[2]
    assert keys([1]) == []


def test_keys_of_domains_differ() -> None:
    """Hazard A06: an adapter X is no salt X, and no two fields can be cut in two ways."""
    names = ["", "X", "XX", "', 'X", "X', '"]
    domains = [Domain(salt, adapter) for salt, adapter in itertools.product(names, names)]
    assert len({keys([1, 2], domain)[0] for domain in domains}) == len(domains)
    pool = BlockAllocator(4)
    cache = HashCache(pool, 2)
    cache.insert([1, 2], pool.allocate(1), Domain(adapter="X"))
    assert (cache.match([1, 2], Domain(salt="X")), cache.match([1, 2], Domain(adapter="X"))) == ([], [0])


actions = st.lists(st.one_of(st.tuples(DOMAINS, TOKENS), st.integers(0, 3), st.sampled_from(["keep", "leave"])), max_size=40)


@given(actions=actions, size=st.sampled_from([1, 2, 4]), num_blocks=st.integers(2, 10))
def test_both_caches_do_the_same_in_any_history(actions: list[object], size: int, num_blocks: int) -> None:
    """Block for block: they find, keep and give up the same, since the allocator decides who goes."""
    pools = [PagedCache(CacheConfig(num_blocks=num_blocks, block_size=size, prefix_cache=kind)) for kind in ("radix", "hash")]
    seen = [list[tuple[int, bool]](), list[tuple[int, bool]]()]
    for pool, events in zip(pools, seen, strict=True):
        pool.prefix_cache.watch(lambda block, kept, events=events: events.append((block, kept)))
    running: list[tuple[Domain, list[int], list[list[int]]]] = []
    for action in actions:
        if isinstance(action, tuple):
            domain, tokens = action
            tables = [pool.match_prefix(tokens, domain) for pool in pools]
            for pool, table in zip(pools, tables, strict=True):
                try:
                    pool.reserve(table, len(table) * size, len(tokens))
                except OutOfBlocks:
                    pool.release(table)
            running.append((domain, tokens, tables))
        elif isinstance(action, int):
            assert len({pool.prefix_cache.evict(action) for pool in pools}) == 1
        elif running:
            domain, tokens, tables = running.pop(0)
            for pool, table in zip(pools, tables, strict=True):
                if action == "keep" and table:
                    pool.keep(tokens, table, domain)
                pool.release(table)
        for _, _, tables in running:
            assert tables[0] == tables[1]
        for i, pool in enumerate(pools):
            pool.check(tables[i] for _, _, tables in running)
        assert seen[0] == seen[1]
        assert pools[0].prefix_cache.stats == pools[1].prefix_cache.stats
