"""Blocks kept after their sequence is gone, in case the same prefix comes again: the interface, and the cache that keeps nothing.

Who holds what: `match` adds a reference for the caller, who frees it like any block of its table. `insert` adds the cache's
own reference to blocks it did not have. So a block's count is the tables that hold it plus one if the cache does.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Protocol


class PrefixCache(Protocol):
    """Keys are token ids from position 0; values are whole blocks. Only verified tokens are inserted."""

    @property
    def num_blocks(self) -> int:
        """Blocks that the cache references."""
        ...

    @property
    def num_evictable(self) -> int:
        """Blocks that only the cache references: they can be given back."""
        ...

    def match(self, token_ids: Tokens[int]) -> list[int]:
        """The longest cached prefix in whole blocks; adds one reference each, which the caller owns."""
        ...

    def insert(self, token_ids: Tokens[int], blocks: Tokens[int]) -> None:
        """Keep blocks[i], which holds token_ids[i * block_size : (i + 1) * block_size]; adds a reference to each new one."""
        ...

    def evict(self, count: int) -> int:
        """Give back up to `count` evictable blocks, least recently used first; returns how many."""
        ...

    def check(self) -> None:
        """Raises AssertionError if the books of the cache do not balance."""
        ...


class NoPrefixCache:
    """Keeps nothing: every prompt is computed from its first token."""

    num_blocks = 0
    num_evictable = 0

    def match(self, token_ids: Tokens[int]) -> list[int]:
        return []

    def insert(self, token_ids: Tokens[int], blocks: Tokens[int]) -> None:
        return None

    def evict(self, count: int) -> int:
        return 0

    def check(self) -> None:
        return None
