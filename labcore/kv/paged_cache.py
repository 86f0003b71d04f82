"""The paged KV pool, as books: block tables grow and shrink here, out of free blocks first and idle cached blocks second.

It knows block ids and token ids, but no sequences: a table is a plain list of block ids that its owner keeps.

    >>> cache = PagedCache(CacheConfig(num_blocks=4, block_size=16))
    >>> table = []
    >>> cache.reserve(table, start=0, stop=20), table
    ([], [0, 1])
    >>> fork = cache.fork(table)
    >>> cache.reserve(fork, start=20, stop=21), fork      # position 20 lies in block 1, which both hold: copied first
    ([(1, 2)], [0, 2])
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Tokens

from labcore.core.config import CacheConfig
from labcore.core.errors import OutOfBlocks
from labcore.kv.block_allocator import BlockAllocator
from labcore.kv.block_table import blocks_for
from labcore.kv.hash_cache import HashCache
from labcore.kv.prefix_cache import ANYONE, Domain, MakeCache, NoPrefixCache, PrefixCache
from labcore.kv.radix_cache import RadixCache

PREFIX_CACHES: dict[str, MakeCache] = {"none": NoPrefixCache, "radix": RadixCache, "hash": HashCache}
Copy = tuple[int, int]  # (source, destination): a whole block, every layer, K and V


class PagedCache:
    """A pool of blocks, and the prefix cache that keeps some of them warm."""

    def __init__(self, config: CacheConfig, make_cache: MakeCache | None = None) -> None:
        """make_cache: another prefix cache than the one that the config names."""
        self.block_size = config.block_size
        self.allocator = BlockAllocator(config.num_blocks)
        self.prefix_cache: PrefixCache = (make_cache or PREFIX_CACHES[config.prefix_cache])(self.allocator, config.block_size)

    @property
    def num_available(self) -> int:
        """Blocks that can still be handed out: free ones, and cached ones that nobody holds."""
        return self.allocator.num_free + self.allocator.num_idle

    @property
    def num_slots(self) -> int:
        return self.allocator.num_blocks * self.block_size

    @property
    def num_used(self) -> int:
        """Blocks that tables hold."""
        return self.allocator.num_blocks - self.num_available

    def blocks_for(self, num_tokens: int) -> int:
        return blocks_for(num_tokens, self.block_size)

    def match_prefix(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> list[int]:
        """Cached blocks of this prefix, referenced for the caller. Never all tokens: one is always left to be computed."""
        return self.prefix_cache.match(self._whole_blocks(token_ids, len(token_ids) - 1), domain)

    def reserve(self, table: list[int], start: int, stop: int) -> list[Copy]:
        """Make positions start .. stop - 1 writable, or change nothing and raise OutOfBlocks.

        The table grows until it holds them; a block in it that others hold too is exchanged for a new one. Only the block of
        `start` can be such a one: those behind it are new. Returns the copies to make before anything is written.
        """
        shared = start < stop and self._is_shared(table, start)
        missing = self.blocks_for(stop) - len(table)
        if missing <= 0 and not shared:  # as most steps of most sequences
            return []
        new = self._take(max(missing, 0) + shared)
        copies = []
        if shared:
            at = start // self.block_size
            source, table[at] = table[at], new.pop(0)
            self.allocator.free([source])
            copies.append((source, table[at]))
        table += new
        return copies

    def reach(self, table: list[int], start: int) -> int:
        """The furthest that `reserve(table, start, stop)` can go now."""
        return (len(table) + self.num_available - self._is_shared(table, start)) * self.block_size

    def trim(self, table: list[int], num_tokens: int) -> None:
        """Give back the blocks behind those of so many tokens: room for guesses that were wrong."""
        excess = table[self.blocks_for(num_tokens) :]
        if excess:
            del table[-len(excess) :]
            self.allocator.free(excess)

    def fork(self, table: list[int]) -> list[int]:
        """A second table of the same blocks."""
        self.allocator.share(table)
        return list(table)

    def keep(self, token_ids: Tokens[int], table: list[int], domain: Domain = ANYONE) -> None:
        """Offer the full blocks of these computed tokens to the prefix cache, which may exchange blocks of the table."""
        self.prefix_cache.insert(self._whole_blocks(token_ids, len(token_ids)), table, domain)

    def release(self, table: list[int]) -> None:
        """Give the table's references back and empty it."""
        self.allocator.free(table)
        table.clear()

    def check(self, tables: Iterable[list[int]]) -> None:
        """The books balance: each block's count is the tables that hold it plus one if the cache does. Raises AssertionError."""
        self.allocator.check()
        self.prefix_cache.check()
        counts = [int(self.allocator.is_cached(block)) for block in range(self.allocator.num_blocks)]
        assert sum(counts) == self.prefix_cache.num_blocks, "the cache counts other blocks than it references"
        for table in tables:
            assert len(set(table)) == len(table), "a table holds a block twice"
            for block in table:
                counts[block] += 1
        assert counts == [self.allocator.refcount(block) for block in range(self.allocator.num_blocks)], (
            "references are lost or held by nobody"
        )

    def _whole_blocks(self, token_ids: Tokens[int], num_tokens: int) -> Tokens[int]:
        return token_ids[: num_tokens // self.block_size * self.block_size]

    def _is_shared(self, table: list[int], position: int) -> bool:
        at = position // self.block_size
        return at < len(table) and self.allocator.refcount(table[at]) > 1

    def _take(self, count: int) -> list[int]:
        if self.allocator.num_free < count <= self.num_available:
            self.prefix_cache.evict(count - self.allocator.num_free)
        if count > self.allocator.num_free:
            raise OutOfBlocks(f"{count} blocks wanted, {self.num_available} of {self.allocator.num_blocks} free or idle")
        return self.allocator.allocate(count)
