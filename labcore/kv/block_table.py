"""Where a sequence's tokens lie: position p is in slot p % block_size of block table[p // block_size].

>>> blocks_for(17, block_size=16)
2
>>> slots([7, 3], range(15, 18), block_size=16)    # block 7 slot 15, block 3 slots 0 and 1
[127, 48, 49]
"""

from __future__ import annotations


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-num_tokens // block_size)


def slots(block_ids: list[int], positions: range, block_size: int) -> list[int]:
    """The slot (block * block_size + offset) of each position."""
    return [block_ids[p // block_size] * block_size + p % block_size for p in positions]
