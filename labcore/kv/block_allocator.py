"""Who owns which block: a free list and reference counts.

A block is referenced by every table that holds it and by the prefix cache, once each; it is free when nobody does.

    >>> pool = BlockAllocator(4)
    >>> pool.allocate(3)
    [0, 1, 2]
    >>> pool.free([0, 1, 2]); pool.num_free
    4
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from labcore.core.errors import OutOfBlocks


class BlockAllocator:
    """Blocks 0 .. num_blocks - 1. All operations are O(1) per block."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._refcounts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def refcount(self, block: int) -> int:
        return self._refcounts[block]

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

    def free(self, blocks: list[int]) -> None:
        """Drop one reference of each. Last block first: the tail of a prefix is the first to be taken again."""
        for block in reversed(blocks):
            assert self._refcounts[block] > 0, f"block {block} is freed twice"
            self._refcounts[block] -= 1
            if self._refcounts[block] == 0:
                self._free.append(block)

    def check(self) -> None:
        """The books balance: a block is free exactly if nobody references it, and stands in the free list once."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block stands in the free list twice"
        assert free == {b for b, count in enumerate(self._refcounts) if count == 0}, "free list and reference counts disagree"
