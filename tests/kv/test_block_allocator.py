"""The allocator against a model of it: Hypothesis makes and shrinks histories of allocate, share and free."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from labcore.core.errors import OutOfBlocks
from labcore.kv.block_allocator import BlockAllocator


class AllocatorMachine(RuleBasedStateMachine):
    """The model is the list of tables alive; a block's count must be the tables that hold it."""

    NUM_BLOCKS = 9

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockAllocator(self.NUM_BLOCKS)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(0, 12))
    def allocate(self, count: int) -> None:
        free = self.pool.num_free
        if count > free:
            with pytest.raises(OutOfBlocks, match=f"{count} blocks wanted, {free} of 9 free"):
                self.pool.allocate(count)
            assert self.pool.num_free == free
        else:
            table = self.pool.allocate(count)
            assert len(set(table)) == count
            assert all(block not in other for block in table for other in self.tables)
            self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.pool.share(table)
        self.tables.append(list(table))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.pool.free(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @invariant()
    def books_balance(self) -> None:
        self.pool.check()
        held = [block for table in self.tables for block in table]
        assert [self.pool.refcount(b) for b in range(self.NUM_BLOCKS)] == [held.count(b) for b in range(self.NUM_BLOCKS)]
        assert self.pool.num_free == self.NUM_BLOCKS - len(set(held))


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_block_freed_twice_is_noticed() -> None:
    pool = BlockAllocator(2)
    pool.free(pool.allocate(1))
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([0])


def test_the_tail_is_reused_first() -> None:
    """Blocks are freed last to first: the head of a prefix, the part most worth keeping, is taken again last."""
    pool = BlockAllocator(3)
    pool.free(pool.allocate(3))
    assert pool.allocate(3) == [2, 1, 0]
