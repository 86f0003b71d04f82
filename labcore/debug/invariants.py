"""Who holds which KV block, and whether the books of memory balance: a report to read when a check has failed, or to be sure.

    >>> cache = PagedCache(CacheConfig(num_blocks=2, block_size=16))
    >>> table = []
    >>> _ = cache.reserve(table, 0, 20)
    >>> print(report(cache, {"a": table}))
    2 blocks: 0 free, 0 idle in the cache, 2 used
      0  used by a
      1  used by a
    every book balances

Nothing is changed and nothing raised: what the owners' own `check` says stands in the report. It costs the whole pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labcore.kv.paged_cache import PagedCache

FREE, IDLE, USED = "free", "idle", "used"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReport:
    """One block: what it is, who holds it, and what is wrong with that."""

    block: int
    state: str
    holders: tuple[str, ...]  # names of the tables that have it
    cached: bool
    references: int
    fault: str = ""

    def __str__(self) -> str:
        held = f" by {', '.join(self.holders)}" if self.holders else ""
        cached = " and kept by the cache" if self.cached and self.state == USED else ""
        return f"{self.block:>3}  {self.state}{held}{cached}" + (f"  <- {self.fault}" if self.fault else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    blocks: tuple[BlockReport, ...]
    faults: tuple[str, ...]  # of single blocks, and what the owners' checks say

    @property
    def balanced(self) -> bool:
        return not self.faults

    def count(self, state: str) -> int:
        return sum(block.state == state for block in self.blocks)

    def __str__(self) -> str:
        free, idle, used = map(self.count, (FREE, IDLE, USED))
        head = f"{len(self.blocks)} blocks: {free} free, {idle} idle in the cache, {used} used"
        rows = [f"{block}" for block in self.blocks if block.state != FREE or block.fault]
        return "\n".join([head, *rows, *(self.faults or ["every book balances"])])


def report(cache: PagedCache, tables: Mapping[str, list[int]]) -> Report:
    """tables: the block table of each sequence that holds blocks, by its name."""
    holders: dict[int, list[str]] = {}
    for name, table in tables.items():
        for block in table:
            holders.setdefault(block, []).append(name)
    blocks = tuple(_block(cache, block, holders.get(block, [])) for block in range(cache.allocator.num_blocks))
    faults = [f"block {block.block}: {block.fault}" for block in blocks if block.fault]
    faults += [f"{', '.join(names)}: holds block {block}, which is not in the pool" for block, names in holders.items()
               if not 0 <= block < len(blocks)]  # fmt: skip
    return Report(blocks=blocks, faults=(*faults, *_said(cache, tables)))


def _block(cache: PagedCache, block: int, holders: list[str]) -> BlockReport:
    references, cached = cache.allocator.refcount(block), cache.allocator.is_cached(block)
    state = USED if holders else IDLE if cached else FREE
    fault = ""
    if len(set(holders)) < len(holders):
        fault = "a table has it twice"
    elif references < len(holders) + cached:
        fault = f"{references} references, and {len(holders) + cached} hold it: it may be given to somebody else"
    elif references > len(holders) + cached:
        fault = f"{references} references, and {len(holders) + cached} hold it: it is lost until the engine ends"
    return BlockReport(
        block=block, state=state, holders=tuple(holders), cached=cached, references=references, fault=fault
    )  # fmt: skip


def _said(cache: PagedCache, tables: Mapping[str, list[int]]) -> Iterator[str]:
    """What the owners say of their own books."""
    pool = ("pool", lambda: cache.check(tables.values()))
    for name, check in [("allocator", cache.allocator.check), ("prefix cache", cache.prefix_cache.check), pool]:
        try:
            check()
        except (AssertionError, LookupError) as error:
            yield f"{name}: {error!s:.200}" if isinstance(error, AssertionError) else f"{name}: {error!r:.200}"
