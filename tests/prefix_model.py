"""Prefix caches against a model of them that a reader can check at a glance: a dictionary from prefixes to blocks.

Hypothesis makes and shrinks histories: sequences are taken in, computed, kept, released, and blocks are given up. After every
rule all books are compared: what is found, who holds what, which idle block goes first.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from labcore.kv.block_allocator import BlockAllocator
from labcore.kv.prefix_cache import Domain, MakeCache

TOKENS = st.lists(st.integers(0, 1), max_size=14)  # two tokens: prefixes meet often
DOMAINS = st.sampled_from([Domain(), Domain(), Domain(salt="x"), Domain(adapter="x")])
Key = tuple[Domain, tuple[int, ...]]


class PrefixMachine(RuleBasedStateMachine):
    """`make` builds the cache that is tested."""

    make: MakeCache

    @initialize(num_blocks=st.integers(2, 10), block_size=st.sampled_from([1, 2, 3]))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.pool = BlockAllocator(num_blocks)
        self.cache = type(self).make(self.pool, block_size)
        self.known: dict[Key, int] = {}  # the model: a prefix of whole blocks, and the block that ends it
        self.idle: list[int] = []  # blocks that only the cache holds, least recently used first
        self.written: dict[int, Key] = {}  # what each block holds
        self.tables: list[tuple[Domain, list[int], list[int]]] = []  # (domain, tokens, blocks)
        self.events: list[tuple[int, bool]] = []
        self.cache.watch(lambda block, kept: self.events.append((block, kept)))

    def keys(self, domain: Domain, tokens: list[int]) -> list[Key]:
        return [(domain, tuple(tokens[:end])) for end in range(self.size, len(tokens) + 1, self.size)]

    def found(self, domain: Domain, tokens: list[int]) -> list[int]:
        blocks = []
        for key in self.keys(domain, tokens):
            if key not in self.known:
                break
            blocks.append(self.known[key])
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        """As the allocator must: what nobody else holds becomes idle, or free, the last block first."""
        self.pool.free(blocks)
        held = {block for _, _, table in self.tables for block in table}
        self.idle += [b for b in reversed(blocks) if b not in held and b not in self.idle and b in self.known.values()]

    @rule(domain=DOMAINS, tokens=TOKENS)
    def take_in(self, domain: Domain, tokens: list[int]) -> None:
        """A sequence comes: what is found is shared, the rest is allocated, or nothing is kept."""
        expected = self.found(domain, tokens)
        counts = [self.pool.refcount(b) for b in range(self.pool.num_blocks)]
        assert self.cache.match_length(tokens, domain) == len(expected) * self.size
        table = self.cache.match(tokens, domain)
        assert table == expected
        assert [self.pool.refcount(b) - counts[b] for b in range(self.pool.num_blocks)] == [
            int(b in table) for b in range(self.pool.num_blocks)
        ]
        for block, key in zip(table, self.keys(domain, tokens), strict=False):
            assert self.written[block] == key, "a block was found that holds other tokens"
        self.idle = [block for block in self.idle if block not in table]
        missing = -(-len(tokens) // self.size) - len(table)
        if missing > self.pool.num_free + self.pool.num_idle:
            self.give_back(table)  # a failed admission keeps nothing
            assert [self.pool.refcount(b) for b in range(self.pool.num_blocks)] == counts
            return
        self.give_up(max(0, missing - self.pool.num_free))
        table += self.pool.allocate(missing)
        for block, key in zip(table, self.keys(domain, tokens), strict=False):
            self.written[block] = key
        self.tables.append((domain, tokens, table))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), leaves=st.booleans(), part=st.integers(0, 14))
    def keep(self, data: st.DataObject, leaves: bool, part: int) -> None:
        """A sequence's blocks are offered, maybe while its prompt is computed in part only; then it leaves, or goes on."""
        place = data.draw(st.integers(0, len(self.tables) - 1))
        domain, tokens, table = self.tables[place]
        whole = tokens[: min(part, len(tokens)) // self.size * self.size]
        self.events.clear()
        before = list(table)
        self.cache.insert(whole, table, domain)
        new = []
        for at, key in enumerate(self.keys(domain, whole)):
            if key not in self.known:
                self.known[key] = table[at]
                new.append((table[at], True))
            assert table[at] == self.known[key], "the table does not hold the block that the cache keeps"
        assert self.events == new
        assert table[len(whole) // self.size :] == before[len(whole) // self.size :]
        self.idle = [block for block in self.idle if block not in table]
        if leaves:
            del self.tables[place]
            self.give_back(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        _, _, table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.give_back(table)

    @rule(count=st.integers(0, 5))
    def give_up(self, count: int) -> None:
        """The least recently used goes first, and nothing that another prefix stands on."""
        expected = self.idle[:count]
        self.events.clear()
        assert self.cache.evict(count) == len(expected)
        assert self.events == [(block, False) for block in expected]
        for block in expected:
            [gone] = [key for key, kept in self.known.items() if kept == block]
            del self.known[gone]
            assert not any(d == gone[0] and t[: len(gone[1])] == gone[1] for d, t in self.known), "a prefix has a hole"
        self.idle = self.idle[len(expected) :]

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        self.cache.check()
        held = [block for _, _, table in self.tables for block in table]
        for block in range(self.pool.num_blocks):
            kept = block in self.known.values()
            assert self.pool.is_cached(block) == kept
            assert self.pool.refcount(block) == held.count(block) + kept
        assert self.cache.num_blocks == len(self.known)
        assert self.pool.num_idle == len(self.idle)
        stats = self.cache.stats
        assert stats.inserted_tokens - stats.evicted_tokens == len(self.known) * self.size
