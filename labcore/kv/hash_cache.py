"""A prefix cache as a table of hashes: the key of a block is the hash of its tokens and of the key before it.

    >>> pool = BlockAllocator(8); cache = HashCache(pool, 2); table = pool.allocate(3)
    >>> cache.insert([1, 2, 3, 4, 5, 6], table); pool.free(table)
    >>> cache.match([1, 2, 3, 4, 9, 9])
    [0, 1]

The chain makes a key stand for the whole prefix, so one flat table does what a tree does; the first link is the hash of the
domain. Two prefixes of one key would share a block: with 128 bits of BLAKE2 that needs about 2**64 blocks.
Source: Kwon et al. 2023 (vLLM, automatic prefix caching).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from hashlib import blake2b

from labcore.kv.block_allocator import BlockAllocator
from labcore.kv.prefix_cache import ANYONE, Domain, KeptBlocks, Observer


class HashCache:
    """Matching and inserting cost the tokens that they walk over; evicting costs the blocks."""

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self.block_size = block_size
        self._kept = KeptBlocks(allocator, block_size)
        self.stats = self._kept.stats
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    @property
    def num_blocks(self) -> int:
        return len(self._kept)

    def match(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> list[int]:
        blocks = list(self._found(token_ids, domain))
        self._kept.allocator.share(blocks)
        return blocks

    def match_length(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> int:
        return sum(self.block_size for _ in self._found(token_ids, domain))

    def insert(self, token_ids: Tokens[int], table: list[int], domain: Domain = ANYONE) -> None:
        for at, key in enumerate(self.keys(token_ids, domain)):
            kept = self._blocks.get(key)
            if kept is None:
                self._kept.keep(table[at])
                self._blocks[key], self._keys[table[at]] = table[at], key
            else:
                self._kept.exchange(table, at, [kept])

    def watch(self, observer: Observer) -> None:
        self._kept.observer = observer

    def evict(self, count: int) -> int:
        count = min(count, self._kept.allocator.num_idle)
        for _ in range(count):
            del self._blocks[self._keys.pop(self._kept.drop_oldest())]
        return count

    def keys(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> Iterator[bytes]:
        """The key of each whole block of a prefix."""
        key = _digest(repr(tuple(domain)).encode())
        for start in range(0, len(token_ids) // self.block_size * self.block_size, self.block_size):
            key = _digest(key + array("q", token_ids[start : start + self.block_size]).tobytes())
            yield key

    def check(self) -> None:
        self._kept.check(list(self._blocks.values()))
        assert {block: key for key, block in self._blocks.items()} == self._keys, "keys and blocks disagree"

    def _found(self, token_ids: Tokens[int], domain: Domain) -> Iterator[int]:
        for key in self.keys(token_ids, domain):
            block = self._blocks.get(key)
            if block is None:
                return
            yield block


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
