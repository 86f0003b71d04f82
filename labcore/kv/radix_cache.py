"""A prefix cache as a radix tree: an edge carries many tokens, and splits where two prompts part.

    >>> pool = BlockAllocator(8); cache = RadixCache(pool, 2); table = pool.allocate(3)
    >>> cache.insert([1, 2, 3, 4, 5, 6], table); pool.free(table)
    >>> cache.match([1, 2, 3, 4, 9, 9])
    [0, 1]

Edges begin and end at block borders: two prompts that part within a block share nothing of it. The tree's lock on a path is the
reference that `match` adds to each of its blocks; what nobody holds is idle, and the allocator knows which idle block is the
oldest. That block is always the last of a leaf (see block_allocator), so eviction cuts leaves back a block at a time and never
searches. Source: Zheng et al. 2023 (SGLang, RadixAttention).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from labcore.kv.block_allocator import BlockAllocator
from labcore.kv.prefix_cache import ANYONE, Domain, KeptBlocks, Observer


@dataclass(eq=False, slots=True)
class Node:
    """An edge and what hangs on it: tokens of whole blocks, the blocks, and children by the tokens of their first block."""

    tokens: list[int]
    blocks: list[int]
    parent: Node | None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    domain: Domain = ANYONE  # of a root


class RadixCache:
    """Matching and inserting cost the tokens of the edges that they walk over, evicting the blocks; nothing costs the tree."""

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self.block_size = block_size
        self._kept = KeptBlocks(allocator, block_size)
        self.stats = self._kept.stats
        self.roots: dict[Domain, Node] = {}
        self._home: dict[int, Node] = {}  # the node of each block

    @property
    def num_blocks(self) -> int:
        return len(self._kept)

    def match(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> list[int]:
        blocks = [block for node, shared in self._walk(token_ids, domain) for block in node.blocks[:shared]]
        self._kept.allocator.share(blocks)
        return blocks

    def match_length(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> int:
        return sum(shared for _, shared in self._walk(token_ids, domain)) * self.block_size

    def insert(self, token_ids: Tokens[int], table: list[int], domain: Domain = ANYONE) -> None:
        node, at = self.roots.get(domain) or Node([], [], None, domain=domain), 0
        for child, shared in list(self._walk(token_ids, domain)):
            self._kept.exchange(table, at, child.blocks[:shared])
            at += shared
            node = child if shared == len(child.blocks) else self._split(child, shared)
        new = table[at : len(token_ids) // self.block_size]
        if new:
            self.roots.setdefault(domain, node)  # of a domain that is new, the root
            tokens = list(token_ids[at * self.block_size :])
            if node.parent is not None and not node.children:  # a leaf grows longer
                node.tokens += tokens
                node.blocks += new
            else:
                node = self._hang(node, Node(tokens, new, node))
            for block in new:
                self._kept.keep(block)
                self._home[block] = node

    def watch(self, observer: Observer) -> None:
        self._kept.observer = observer

    def evict(self, count: int) -> int:
        count = min(count, self._kept.allocator.num_idle)
        for _ in range(count):
            block = self._kept.drop_oldest()
            node = self._home.pop(block)
            assert node.blocks[-1] == block and not node.children, f"block {block} is idle, and another stands behind it"
            if len(node.blocks) == 1:
                assert node.parent is not None
                del node.parent.children[self._key(node.tokens)]
                if node.parent.parent is None and not node.parent.children:
                    del self.roots[node.parent.domain]
            node.blocks.pop()
            del node.tokens[-self.block_size :]
        return count

    def nodes(self) -> Iterator[Node]:
        """Every edge of the tree, parents first."""
        waiting = [child for root in self.roots.values() for child in root.children.values()]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def check(self) -> None:
        nodes = list(self.nodes())
        self._kept.check([block for node in nodes for block in node.blocks])
        assert all(self._home[block] is node for node in nodes for block in node.blocks), "a block is at home in another node"
        for node in nodes:
            assert node.blocks and len(node.tokens) == len(node.blocks) * self.block_size, "an edge is not as long as its blocks"
            assert node.parent and node.parent.children[self._key(node.tokens)] is node, "an edge does not hang where it belongs"
            counts = [self._kept.allocator.refcount(block) for block in node.blocks]
            below = [self._kept.allocator.refcount(child.blocks[0]) for child in node.children.values()]
            assert counts == sorted(counts, reverse=True) and counts[-1] >= max(below, default=0), (
                "a block is held without its prefix"
            )

    def _key(self, tokens: Tokens[int]) -> tuple[int, ...]:
        return tuple(tokens[: self.block_size])

    def _walk(self, token_ids: Tokens[int], domain: Domain) -> Iterator[tuple[Node, int]]:
        """The nodes along a prefix, each with how many of its blocks agree; only the last may agree in part."""
        node, at, size = self.roots.get(domain), 0, self.block_size
        while node is not None:
            child = node.children.get(tuple(token_ids[at : at + size]))
            if child is None:
                return
            rest, shared = list(token_ids[at : at + len(child.tokens)]), len(child.blocks)
            if rest != child.tokens:
                borders = range(size, len(child.tokens), size)
                shared = next(i for i, b in enumerate(borders, 1) if rest[b : b + size] != child.tokens[b : b + size])
            yield child, shared
            node, at = (child if shared == len(child.blocks) else None), at + shared * size

    def _hang(self, parent: Node, child: Node) -> Node:
        parent.children[self._key(child.tokens)] = child
        child.parent = parent
        return child

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge before its block `at`; returns the upper half. The new node is the shorter-lived lower half's parent."""
        assert node.parent is not None
        size = self.block_size
        upper = self._hang(node.parent, Node(node.tokens[: at * size], node.blocks[:at], node.parent))
        node.tokens, node.blocks = node.tokens[at * size :], node.blocks[at:]
        self._hang(upper, node)
        for block in upper.blocks:
            self._home[block] = upper
        return upper
