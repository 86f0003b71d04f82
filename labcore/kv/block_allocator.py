"""Who owns which block: a free list, reference counts, and the cached blocks that nobody uses, in the order of their last use.

A block is referenced by every table that holds it, and once more by the prefix cache if that keeps it. It is *free* when
nobody references it, and *idle* when only the cache does: idle blocks are given up first when memory is short.

    >>> pool = BlockAllocator(4)
    >>> pool.allocate(3)
    [0, 1, 2]
    >>> pool.free([0, 1, 2]); pool.num_free
    4

A table gives its blocks back last block first, so of a sequence's blocks the last becomes idle before those in front of it;
and a table that holds a cached block holds all blocks of its prefix. So the least recently used idle block never has an idle
or used block behind it in any cached prefix: it is a leaf, whatever the cache looks like, and found in O(1).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from labcore.core.errors import OutOfBlocks


class BlockAllocator:
    """Blocks 0 .. num_blocks - 1. All operations are O(1) per block."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._refcounts = [0] * num_blocks
        self._cached = bytearray(num_blocks)  # 1: one of its references is the prefix cache's
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Blocks that only the prefix cache references."""
        return len(self._idle)

    def refcount(self, block: int) -> int:
        return self._refcounts[block]

    def is_cached(self, block: int) -> bool:
        return bool(self._cached[block])

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, one reference each; all or none. Raises OutOfBlocks."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} of {self.num_blocks} free")
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._refcounts[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks that somebody holds already."""
        for block in blocks:
            assert self._refcounts[block] > 0, f"block {block} is free and cannot be shared"
            self._refcounts[block] += 1
            self._idle.pop(block, None)

    def free(self, blocks: list[int]) -> None:
        """Drop one table's reference of each. Last block first: the tail of a prefix is the first to be taken again."""
        for block in reversed(blocks):
            assert self._refcounts[block] > self._cached[block], f"block {block} is freed twice"
            self._refcounts[block] -= 1
            if self._refcounts[block] == 0:
                self._free.append(block)
            elif self._refcounts[block] == self._cached[block]:
                self._idle[block] = None

    def cache(self, block: int) -> None:
        """Add the prefix cache's reference to a block that a table holds."""
        assert self._refcounts[block] > 0 and not self._cached[block], f"block {block} is free, or cached already"
        self._cached[block] = 1
        self._refcounts[block] += 1

    def uncache_oldest(self) -> int:
        """Free the idle block that was used least recently, and return it: the cache forgets it."""
        block, _ = self._idle.popitem(last=False)
        self._cached[block] = self._refcounts[block] = 0
        self._free.append(block)
        return block

    def check(self) -> None:
        """The books balance: every block is free, idle or used, stands in at most one list, and once. Raises AssertionError."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block stands in the free list twice"
        assert free == {b for b, count in enumerate(self._refcounts) if count == 0}, "free list and reference counts disagree"
        idle = {b for b, count in enumerate(self._refcounts) if count == 1 and self._cached[b]}
        assert idle == self._idle.keys(), "idle blocks and reference counts disagree"
        assert not any(self._cached[b] for b in free), "a free block counts as cached"
