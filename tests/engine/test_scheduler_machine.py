"""Hypothesis looks for a history that breaks a rule of the scheduler: requests with one answer or several come, run, are given
up and expire, under every policy and prefix cache, in pools that are too small. The books are checked after every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracle import advance, expected, make_sequence

from labcore.core.config import POLICIES, PREFIX_CACHES, CacheConfig, SchedulerConfig
from labcore.core.errors import InvalidRequest
from labcore.core.trace import StepRecord
from labcore.engine.plan import SchedulerOutput
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import FinishReason, Sequence, SequenceStatus
from labcore.kv.paged_cache import PagedCache
from labcore.kv.prefix_cache import Domain


@dataclass
class Asked:
    """A request as it was made, and its sequences as they appear."""

    prompt: list[int]
    max_length: int
    n: int
    deadline: float
    sequences: list[Sequence]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        prefix_cache=st.sampled_from(PREFIX_CACHES), policy=st.sampled_from(POLICIES), block_size=st.sampled_from([1, 2, 4]),
        num_blocks=st.integers(2, 12), budget=st.integers(1, 24), seqs=st.integers(1, 5),
        chunk=st.sampled_from([None, 1, 3, 8]), watermark=st.integers(0, 3),
    )  # fmt: skip
    def start(
        self, prefix_cache: str, policy: str, block_size: int, num_blocks: int, budget: int, seqs: int, chunk: int | None,
        watermark: int,
    ) -> None:  # fmt: skip
        self.records: list[StepRecord] = []
        self.pool = CacheConfig(block_size=block_size, num_blocks=num_blocks, prefix_cache=prefix_cache)
        config = SchedulerConfig(
            max_num_batched_tokens=budget, max_num_seqs=seqs, max_chunk_tokens=chunk, watermark_blocks=watermark, policy=policy
        )
        self.now = 0.0
        self.cached: set[int] = set()
        self.scheduler = Scheduler(config, PagedCache(self.pool), self.records.append, clock=lambda: self.now)
        self.aborted: list[str] = []  # since the last step
        self.alive: dict[str, Asked] = {}
        self.num_added = 0

    @rule(
        length=st.integers(1, 20), new=st.integers(1, 10), n=st.sampled_from([1, 1, 1, 2, 3]), priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "x"]), patience=st.sampled_from([inf, inf, 0.0, 2.0, 9.0]),
    )  # fmt: skip
    def add(self, length: int, new: int, n: int, priority: int, salt: str, patience: float) -> None:
        name = f"r{self.num_added}"
        self.num_added += 1
        prompt = [(self.num_added % 3 * 7 + i) % 39 + 1 for i in range(length)]  # every third shares its beginning
        if self.scheduler.config.policy != "priority":
            priority = 0
        asked = Asked(prompt, min(length + new, self.pool.num_slots), n, self.now + patience, [])
        sequence = make_sequence(
            name, prompt, asked.max_length, n, priority=priority, domain=Domain(salt=salt), deadline=asked.deadline
        )
        never = self.scheduler.cache.blocks_for(length + 1) > self.pool.num_blocks or n > self.scheduler.config.max_num_seqs
        if never:
            with pytest.raises(InvalidRequest, match=name):
                self.scheduler.add(sequence)
        else:
            self.scheduler.add(sequence)
            asked.sequences.append(sequence)
            self.alive[name] = asked

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        with pytest.raises(InvalidRequest, match="in use"):
            self.scheduler.add(make_sequence(name, [1], 3))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        gone = [s.name for s in self.scheduler.live[name]]
        assert self.scheduler.abort(name)
        assert not self.scheduler.abort(name)  # the second time it is gone
        self.aborted += gone
        for sequence in self.alive.pop(name).sequences:
            assert sequence.status is SequenceStatus.FINISHED and sequence.block_table == []
            assert (sequence.finish_reason is FinishReason.ABORT) == (sequence.name in gone)

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.alive)
    @rule()
    def one_step(self) -> None:
        self.step()

    def step(self) -> None:
        late = {name for name, asked in self.alive.items() if not self.now < asked.deadline}
        running = [s for s in self.scheduler.running if s.request_id not in late]
        computed = [s.num_computed_tokens for s in running]
        output, progress = advance(self.scheduler)
        self.check_record(self.records[-1], output)
        assert {s.request_id for s in output.expired} == late
        assert output.scheduled or not self.alive.keys() - late, "something waits or runs, and nothing was scheduled"
        assert sum(s.num_tokens for s in output.scheduled) <= self.scheduler.config.max_num_batched_tokens
        assert not {id(s) for s in output.preempted} & {id(s.sequence) for s in output.scheduled}, "a victim runs"
        urgent = [s.sequence for s in output.scheduled if running and s.sequence.priority < running[0].priority]
        if running and not urgent:  # none but a more urgent request may take its memory or its budget
            assert running[0].num_computed_tokens > computed[0], "the oldest running sequence did not advance"
        self.settle(late, [one.sequence for one in progress])

    def settle(self, late: set[str], moved: list[Sequence]) -> None:
        """What has ended says what it would have said alone."""
        for sequence in moved:
            asked = self.alive[sequence.request_id]
            if all(sequence is not known for known in asked.sequences):
                asked.sequences.append(sequence)
        for name, asked in list(self.alive.items()):
            if name in late:
                assert all(s.finish_reason for s in asked.sequences)
                del self.alive[name]
            elif name not in self.scheduler.live:
                assert sorted(s.index for s in asked.sequences) == list(range(asked.n)), "an answer is missing"
                for s in asked.sequences:
                    assert s.token_ids == expected(asked.prompt, asked.max_length, s.index)
                del self.alive[name]

    def check_record(self, record: StepRecord, output: SchedulerOutput) -> None:
        """What the record says is what the sequences and queues show."""
        forked = {child for _, child in record.forked}
        told = [s for s in record.scheduled if s.request_id not in forked]
        assert [s.request_id for s in told] == [s.sequence.name for s in output.scheduled]
        for share_told, share in zip(told, output.scheduled, strict=True):
            sequence = share.sequence
            assert (share_told.num_tokens, share_told.num_computed_tokens) == (share.num_tokens, sequence.num_computed_tokens)
            assert (share_told.num_tokens_known, len(share_told.sampled)) == (len(sequence.token_ids), int(share.samples))
            assert share_told.sampled in ((), (sequence.token_ids[-1],))
            assert share_told.state == (sequence.finish_reason.value if sequence.finish_reason else "running")
            assert len(share_told.block_ids) >= self.scheduler.cache.blocks_for(share_told.num_computed_tokens)
            assert sequence.finish_reason or share_told.block_ids == tuple(sequence.block_table)
        assert (record.waiting, record.running) == (len(self.scheduler.waiting), len(self.scheduler.running))
        assert set(record.finished) == {s.request_id for s in record.scheduled if s.state != "running"}
        assert record.preempted == tuple(s.name for s in output.preempted)
        assert bool(record.idle_reason) == (not output.scheduled)
        assert list(record.aborted) == self.aborted
        assert record.expired == tuple(s.name for s in output.expired)
        assert record.copied == output.copies
        self.aborted.clear()
        self.cached = (self.cached - set(record.evicted)) | set(record.kept)
        assert self.cached == {b for b in range(self.pool.num_blocks) if self.scheduler.cache.allocator.is_cached(b)}

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        most = sum(a.n * a.max_length for a in self.alive.values()) * (1 + sum(a.n for a in self.alive.values()))
        for _ in range(200 + 40 * most):
            if not self.alive:
                break
            self.step()
        assert not self.alive, "no end"
        assert self.scheduler.cache.num_used == 0
        assert [record.step for record in self.records] == list(range(len(self.records)))
        assert sum(len(record.preempted) for record in self.records) == self.scheduler.num_preemptions
        for record in self.records:
            assert record.free_blocks + record.cached_blocks + record.used_blocks == self.pool.num_blocks


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=400, stateful_step_count=40)
