"""Blocks kept after their sequence is gone, in case the same prefix comes again: the interface, and the cache that keeps nothing.

Who holds what: `match` adds a reference for the caller, who frees it like any block of its table: that reference is the lock,
on every block of the path. `insert` adds the cache's own reference to blocks it did not have, and where it has a prefix already
it puts its blocks into the table in the place of the table's own. So a block's count is the tables that hold it plus one if the
cache does, and whoever holds a cached block holds all that stand before it.

A key is a domain and token ids from position 0. Domains never share: `("", "a")`, an adapter, is another one than `("a", "")`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from labcore.kv.block_allocator import BlockAllocator


class Domain(NamedTuple):
    """Whose keys and values may be used for whom. Named fields and no joined string: no salt can pass for an adapter."""

    salt: str = ""  # requests of another salt do not see these blocks
    adapter: str = ""  # the weights that computed them


ANYONE = Domain()
Observer = Callable[[int, bool], None]


@dataclass(slots=True)
class CacheStats:
    """What a cache did, in tokens. lifetime: tokens that were asked for between a block's insertion and its eviction, summed."""

    queried_tokens: int = 0  # of requests that were admitted, again after a preemption
    hit_tokens: int = 0
    queries: int = 0  # admissions
    hits: int = 0  # admissions that found anything
    inserted_tokens: int = 0
    evicted_tokens: int = 0
    lifetime_tokens: int = 0

    def admitted(self, num_tokens: int, num_hit: int) -> None:
        """A request of so many tokens was admitted with so many found."""
        self.queries += 1
        self.hits += num_hit > 0
        self.queried_tokens += num_tokens
        self.hit_tokens += num_hit


class PrefixCache(Protocol):
    """Values are whole blocks. Only computed tokens are inserted; only idle blocks are evicted, least recently used first."""

    stats: CacheStats

    @property
    def num_blocks(self) -> int:
        """Blocks that the cache references."""
        ...

    def match(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> list[int]:
        """The longest cached prefix in whole blocks; adds one reference each, which the caller owns."""
        ...

    def match_length(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> int:
        """Tokens that `match` would find now; changes nothing."""
        ...

    def insert(self, token_ids: Tokens[int], table: list[int], domain: Domain = ANYONE) -> None:
        """Keep the first len(token_ids) / block_size blocks of a table, which hold these tokens.

        Where the cache has a prefix already, its blocks come into the table and those of the table are given back.
        """
        ...

    def evict(self, count: int) -> int:
        """Give back up to `count` idle blocks, least recently used first; returns how many."""
        ...

    def watch(self, observer: Observer) -> None:
        """Call observer(block, True) for each block that comes in from now on, observer(block, False) for each that goes."""
        ...

    def check(self) -> None:
        """Raises AssertionError if the books of the cache do not balance."""
        ...


MakeCache = Callable[[BlockAllocator, int], PrefixCache]  # (allocator, block_size)


class NoPrefixCache:
    """Keeps nothing: every prompt is computed from its first token."""

    num_blocks = 0

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self.stats = CacheStats()

    def match(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> list[int]:
        return []

    def match_length(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> int:
        return 0

    def insert(self, token_ids: Tokens[int], table: list[int], domain: Domain = ANYONE) -> None:
        return None

    def evict(self, count: int) -> int:
        return 0

    def watch(self, observer: Observer) -> None:
        return None

    def check(self) -> None:
        return None


def _nobody(block: int, kept: bool) -> None:
    return None


@dataclass(slots=True)
class KeptBlocks:
    """The blocks a cache keeps, whatever it finds them by: references, statistics, and which must go first."""

    allocator: BlockAllocator
    block_size: int
    stats: CacheStats = field(default_factory=CacheStats)
    observer: Observer = _nobody
    _born: dict[int, int] = field(default_factory=dict)  # by block: tokens queried before it came in

    def __len__(self) -> int:
        return len(self._born)

    def __contains__(self, block: int) -> bool:
        return block in self._born

    def keep(self, block: int) -> None:
        self.allocator.cache(block)
        self._born[block] = self.stats.queried_tokens
        self.stats.inserted_tokens += self.block_size
        self.observer(block, True)

    def exchange(self, table: list[int], at: int, kept: list[int]) -> None:
        """Put kept blocks into a table from place `at` on, and give back what it has there; both hold the same tokens."""
        own = table[at : at + len(kept)]
        if own != kept:
            self.allocator.share(kept)
            self.allocator.free(own)
            table[at : at + len(kept)] = kept

    def drop_oldest(self) -> int:
        block = self.allocator.uncache_oldest()
        self.stats.evicted_tokens += self.block_size
        self.stats.lifetime_tokens += self.stats.queried_tokens - self._born.pop(block)
        self.observer(block, False)
        return block

    def check(self, found: list[int]) -> None:
        """found: every block that the cache can find, each once."""
        assert len(set(found)) == len(found), "two prefixes share a block"
        assert self._born.keys() == set(found), "a kept block cannot be found, or a found one is not kept"
        assert all(self.allocator.is_cached(block) for block in found), "a kept block does not count as cached"
