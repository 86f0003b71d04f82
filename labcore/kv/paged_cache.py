"""The paged KV pool, as books: block tables grow and shrink here, out of free blocks first and cached blocks second.

It knows block ids and token ids, but no sequences: a table is a plain list of block ids that its owner keeps.

    >>> cache = PagedCache(CacheConfig(num_blocks=4, block_size=16))
    >>> table = []
    >>> cache.grow(table, num_tokens=20); table
    [0, 1]
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Tokens

from labcore.core.config import CacheConfig
from labcore.kv.block_allocator import BlockAllocator
from labcore.kv.block_table import blocks_for
from labcore.kv.prefix_cache import NoPrefixCache, PrefixCache


class PagedCache:
    """A pool of blocks, and the prefix cache that keeps some of them warm."""

    def __init__(self, config: CacheConfig, make_cache: Callable[[BlockAllocator, int], PrefixCache] | None = None) -> None:
        """make_cache: called with the allocator and the block size; None = no prefix cache."""
        self.block_size = config.block_size
        self.allocator = BlockAllocator(config.num_blocks)
        self.prefix_cache: PrefixCache = make_cache(self.allocator, config.block_size) if make_cache else NoPrefixCache()

    @property
    def num_available(self) -> int:
        """Blocks that `grow` can still hand out."""
        return self.allocator.num_free + self.prefix_cache.num_evictable

    @property
    def num_used(self) -> int:
        """Blocks that tables hold."""
        return self.allocator.num_blocks - self.num_available

    def blocks_for(self, num_tokens: int) -> int:
        return blocks_for(num_tokens, self.block_size)

    def match_prefix(self, token_ids: Tokens[int]) -> list[int]:
        """Cached blocks of this prefix, referenced for the caller. Never all tokens: one is always left to be computed."""
        return self.prefix_cache.match(token_ids[: (len(token_ids) - 1) // self.block_size * self.block_size])

    def grow(self, table: list[int], num_tokens: int) -> None:
        """Extend the table until it holds `num_tokens`, or change nothing and raise OutOfBlocks."""
        missing = self.blocks_for(num_tokens) - len(table)
        if missing > 0:
            if self.allocator.num_free < missing <= self.num_available:
                self.prefix_cache.evict(missing - self.allocator.num_free)
            table.extend(self.allocator.allocate(missing))

    def keep(self, token_ids: Tokens[int], table: list[int]) -> None:
        """Offer the full blocks of these computed tokens to the prefix cache."""
        full = len(token_ids) // self.block_size
        self.prefix_cache.insert(token_ids[: full * self.block_size], table[:full])

    def release(self, table: list[int]) -> None:
        """Give the table's references back and empty it."""
        self.allocator.free(table)
        table.clear()

    def check(self, tables: list[list[int]]) -> None:
        """The books balance: each block's count is the tables that hold it plus one if the cache does."""
        self.allocator.check()
        self.prefix_cache.check()
        held = [block for table in tables for block in table]
        total = sum(self.allocator.refcount(block) for block in range(self.allocator.num_blocks))
        assert total == len(held) + self.prefix_cache.num_blocks, "references are lost or held by nobody"
        assert all(self.allocator.refcount(block) >= held.count(block) for block in set(held)), "a table holds a free block"
