"""The scheduler on its own, with an oracle in place of the model: books after every step, progress, and public failures.

No weights: a token is a function of the tokens before it, so whatever is scheduled how, the right output is known.
"""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import DictCache

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.errors import InvalidRequest, NumericalError
from labcore.core.trace import StepRecord
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.scheduler import Scheduler, SchedulerOutput
from labcore.engine.sequence import FinishReason, Sequence, SequenceStatus
from labcore.kv.paged_cache import PagedCache

EOS = 0


def oracle(tokens: list[int]) -> int:
    """The next token of a text: any fixed function will do."""
    return hashlib.blake2b(repr(tokens).encode(), digest_size=1).digest()[0] % 40


def expected(prompt: list[int], max_length: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < max_length:
        tokens.append(oracle(tokens))
        if tokens[-1] == EOS:
            break
    return tokens


def make_scheduler(num_blocks: int = 8, block_size: int = 4, **limits: int) -> tuple[Scheduler, list[StepRecord]]:
    records: list[StepRecord] = []
    return Scheduler(
        SchedulerConfig(**limits), PagedCache(CacheConfig(block_size=block_size, num_blocks=num_blocks)), records.append
    ), records


def make_sequence(name: str, prompt: list[int], max_length: int) -> Sequence:
    return Sequence(
        request_id=name, token_ids=list(prompt), num_prompt_tokens=len(prompt), params=SamplingParams(), seed=0,
        stop_token_ids=frozenset({EOS}), max_length=max_length, length_reason=FinishReason.LENGTH,
    )  # fmt: skip


def execute(output: SchedulerOutput) -> list[list[int]]:
    return [[oracle(share.sequence.token_ids)] if share.samples else [] for share in output.scheduled]


def step(scheduler: Scheduler) -> SchedulerOutput:
    output = scheduler.schedule()
    for share in output.scheduled:  # what the step promises is reserved
        held = len(share.sequence.block_table) * scheduler.cache.block_size
        assert held >= share.sequence.num_computed_tokens + share.num_tokens
    scheduler.update(output, execute(output))
    scheduler.check()
    return output


def drain(scheduler: Scheduler, most: int = 2000) -> int:
    for steps in range(most):
        if not scheduler.has_unfinished:
            return steps
        step(scheduler)
    raise AssertionError(f"no end after {most} steps")


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, run, and are given up, in any order; Hypothesis looks for a history that breaks a rule."""

    @initialize(
        cached=st.booleans(), block_size=st.sampled_from([1, 2, 4]), num_blocks=st.integers(2, 12),
        budget=st.integers(1, 24), seqs=st.integers(1, 5), chunk=st.sampled_from([None, 1, 3, 8]), watermark=st.integers(0, 3),
    )  # fmt: skip
    def start(
        self, cached: bool, block_size: int, num_blocks: int, budget: int, seqs: int, chunk: int | None, watermark: int
    ) -> None:
        self.records: list[StepRecord] = []
        self.pool = CacheConfig(block_size=block_size, num_blocks=num_blocks)
        config = SchedulerConfig(
            max_num_batched_tokens=budget, max_num_seqs=seqs, max_chunk_tokens=chunk, watermark_blocks=watermark
        )
        cache = PagedCache(self.pool, DictCache if cached else None)
        self.scheduler = Scheduler(config, cache, self.records.append)
        self.aborted: list[str] = []  # since the last step
        self.alive: dict[str, Sequence] = {}
        self.prompts: dict[str, list[int]] = {}
        self.num_added = 0

    @rule(length=st.integers(1, 20), new=st.integers(1, 10))
    def add(self, length: int, new: int) -> None:
        name = f"r{self.num_added}"
        self.num_added += 1
        prompt = [(self.num_added % 3 * 7 + i) % 39 + 1 for i in range(length)]  # every third shares its beginning
        sequence = make_sequence(name, prompt, min(length + new, self.pool.num_slots))
        if self.scheduler.cache.blocks_for(length + 1) > self.pool.num_blocks:
            with pytest.raises(InvalidRequest, match=name):
                self.scheduler.add(sequence)
        else:
            self.scheduler.add(sequence)
            self.alive[name], self.prompts[name] = sequence, prompt

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.alive)))
        assert self.scheduler.abort(name)
        assert not self.scheduler.abort(name)  # the second time it is gone
        self.aborted.append(name)
        sequence = self.alive.pop(name)
        assert (sequence.finish_reason, sequence.block_table) == (FinishReason.ABORT, [])

    @precondition(lambda self: self.alive)
    @rule()
    def one_step(self) -> None:
        oldest = self.scheduler.running[0] if self.scheduler.running else None
        computed = oldest.num_computed_tokens if oldest else 0
        output = step(self.scheduler)
        self.check_record(self.records[-1], output)
        assert output.scheduled, "something waits or runs, and nothing was scheduled"
        assert sum(s.num_tokens for s in output.scheduled) <= self.scheduler.config.max_num_batched_tokens
        assert not {id(s) for s in output.preempted} & {id(s.sequence) for s in output.scheduled}, "a victim runs"
        if oldest:
            assert oldest.num_computed_tokens > computed, "the oldest running sequence did not advance"
        for name, sequence in list(self.alive.items()):
            if sequence.status is SequenceStatus.FINISHED:
                assert sequence.token_ids == expected(self.prompts[name], sequence.max_length)
                del self.alive[name]

    def check_record(self, record: StepRecord, output: SchedulerOutput) -> None:
        """What the record says is what the sequences and queues show."""
        assert [s.request_id for s in record.scheduled] == [s.sequence.request_id for s in output.scheduled]
        for told, share in zip(record.scheduled, output.scheduled, strict=True):
            sequence = share.sequence
            assert (told.num_tokens, told.num_computed_tokens) == (share.num_tokens, sequence.num_computed_tokens)
            assert (told.num_tokens_known, len(told.sampled)) == (len(sequence.token_ids), int(share.samples))
            assert told.sampled in ((), (sequence.token_ids[-1],))
            assert told.state == (sequence.finish_reason.value if sequence.finish_reason else "running")
            assert len(told.block_ids) >= self.scheduler.cache.blocks_for(told.num_computed_tokens)
            assert sequence.finish_reason or told.block_ids == tuple(sequence.block_table)
        assert (record.waiting, record.running) == (len(self.scheduler.waiting), len(self.scheduler.running))
        assert set(record.finished) == {s.request_id for s in record.scheduled if s.state != "running"}
        assert (record.preempted, record.idle_reason) == (tuple(s.request_id for s in output.preempted), "")
        assert list(record.aborted) == self.aborted
        self.aborted.clear()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        work = sum(s.max_length for s in self.alive.values())
        drain(self.scheduler, most=200 + 40 * work * (1 + len(self.alive)))
        assert self.scheduler.cache.num_used == 0
        assert [record.step for record in self.records] == list(range(len(self.records)))
        assert sum(len(record.preempted) for record in self.records) == self.scheduler.num_preemptions
        for record in self.records:
            assert record.free_blocks + record.cached_blocks + record.used_blocks == self.pool.num_blocks


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=300, stateful_step_count=40)


def test_a_request_that_can_never_fit_is_refused() -> None:
    """A01: a prompt longer than the pool used to wait at the head of the queue for ever, and everybody behind it."""
    scheduler, _ = make_scheduler(num_blocks=8, block_size=4)
    with pytest.raises(InvalidRequest, match="'a': prompt of 40 tokens and one more need 11 KV blocks of 4; the pool has 8"):
        scheduler.add(make_sequence("a", [1] * 40, 44))
    with pytest.raises(InvalidRequest, match="need 9 KV blocks"):
        scheduler.add(make_sequence("a", [1] * 32, 44))  # the prompt fits; the token after it does not
    scheduler.add(make_sequence("b", [2] * 4, 6))
    drain(scheduler)
    assert not scheduler.has_unfinished


def test_a_prompt_is_admitted_whole_and_computed_once() -> None:
    """A02: admitted on its next chunk, a long prompt ran out of blocks half-way, was thrown out, and began again, for ever."""
    scheduler, records = make_scheduler(num_blocks=16, block_size=4, max_chunk_tokens=8)
    scheduler.add(make_sequence("r1", [3] * 28, 40))
    while scheduler.waiting or scheduler.running[0].num_uncomputed_tokens > 1:
        step(scheduler)
    scheduler.add(make_sequence("r2", [5] * 48, 50))
    drain(scheduler)
    computed = sum(s.num_tokens for r in records for s in r.scheduled if s.request_id == "r2" and not s.sampled)
    last_chunk = next(s.num_tokens for r in records for s in r.scheduled if s.request_id == "r2" and s.sampled)
    assert computed + last_chunk == 48
    assert scheduler.num_preemptions == 0


def test_a_sequence_alone_never_preempts_itself() -> None:
    """A03: the only sequence could not grow, threw itself out, and came back to the same wall. It ends where the pool ends."""
    scheduler, records = make_scheduler(num_blocks=2, block_size=4)
    sequence = make_sequence("a", [9] * 7, 8)
    sequence.length_reason = FinishReason.KV_EXHAUSTED
    scheduler.add(sequence)
    drain(scheduler)
    assert len(sequence.token_ids) == 8
    assert sequence.finish_reason is FinishReason.KV_EXHAUSTED or sequence.token_ids[-1] == EOS
    assert scheduler.num_preemptions == 0
    assert all(record.scheduled for record in records)


def test_the_youngest_yields_and_keeps_its_tokens() -> None:
    """Two grow in a pool for one and a half: the younger goes back to the front of the queue, with its sampled tokens."""
    scheduler, records = make_scheduler(num_blocks=6, block_size=4, watermark_blocks=0)
    old, young = make_sequence("old", [1] * 11, 24), make_sequence("young", [2] * 11, 24)
    old.stop_token_ids = young.stop_token_ids = frozenset()
    scheduler.add(old)
    scheduler.add(young)
    scheduler.add(make_sequence("late", [3] * 4, 6))
    while not young.num_preemptions:
        step(scheduler)
    assert (old.num_preemptions, young.num_computed_tokens, young.block_table) == (0, 0, [])
    assert len(young.token_ids) > young.num_prompt_tokens
    assert scheduler.waiting[0] is young  # before "late", which came after it
    drain(scheduler)
    assert [s.token_ids[11:] for s in (old, young)] == [_continue([1] * 11, 13), _continue([2] * 11, 13)]
    assert [name for record in records for name in record.preempted].count("young") == young.num_preemptions


def _continue(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(oracle(tokens))
    return tokens[len(prompt) :]


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    """A11: its freed blocks were still cached; counting its work before the hit was known walked past the table."""
    records: list[StepRecord] = []
    scheduler = Scheduler(SchedulerConfig(), PagedCache(CacheConfig(block_size=4, num_blocks=16), DictCache), records.append)
    sequence = make_sequence("a", list(range(1, 21)), 26)
    sequence.stop_token_ids = frozenset()
    scheduler.add(sequence)
    step(scheduler)
    scheduler._preempt(sequence)
    scheduler.check()
    assert (sequence.num_computed_tokens, len(sequence.token_ids), scheduler.cache.num_used) == (0, 21, 0)
    [share] = scheduler.schedule().scheduled
    assert (sequence.num_cached_tokens, sequence.num_computed_tokens, share.num_tokens) == (20, 20, 1)
    assert len(sequence.block_table) == 6
    scheduler.update(SchedulerOutput((share,), ()), execute(SchedulerOutput((share,), ())))
    drain(scheduler)
    assert sequence.output_token_ids == _continue(list(range(1, 21)), 6)


def test_a_failed_admission_keeps_nothing() -> None:
    """A04: a hit takes references; if the rest does not fit, they are given back, every time."""
    scheduler = Scheduler(SchedulerConfig(), PagedCache(CacheConfig(block_size=4, num_blocks=10), DictCache))
    scheduler.add(make_sequence("warm", list(range(1, 9)), 9))
    drain(scheduler)
    scheduler.add(make_sequence("big", [30] * 24, 30))
    step(scheduler)
    scheduler.add(make_sequence("hit", [*range(1, 9), *[31] * 20], 30))
    counts = [scheduler.cache.allocator.refcount(b) for b in range(10)]
    for _ in range(10):
        assert not scheduler._admit(scheduler.waiting[0])
        assert [scheduler.cache.allocator.refcount(b) for b in range(10)] == counts
    assert scheduler.abort("hit")
    drain(scheduler)
    assert scheduler.cache.num_used == 0


def test_the_watermark_never_stops_an_empty_engine() -> None:
    scheduler, _ = make_scheduler(num_blocks=3, block_size=4, watermark_blocks=50)
    scheduler.add(make_sequence("a", [1] * 8, 12))
    scheduler.add(make_sequence("b", [2] * 2, 4))
    assert [s.sequence.request_id for s in step(scheduler).scheduled] == ["a"]
    drain(scheduler)


def test_an_idle_step_is_counted_and_does_nothing() -> None:
    scheduler, records = make_scheduler()
    assert step(scheduler).scheduled == ()
    assert (scheduler.num_empty_steps, records[0].idle_reason) == (1, "nothing to do")


def test_tokens_behind_a_stop_are_cut() -> None:
    """Several tokens may come at once (an accepted draft): the one that ends the request is the last."""
    scheduler, records = make_scheduler()
    sequence = make_sequence("a", [1, 2], 12)
    scheduler.add(sequence)
    output = scheduler.schedule()
    tokens = [7, EOS, 9, 9]
    assert scheduler.update(output, [tokens]) == [sequence]
    assert (sequence.output_token_ids, tokens) == ([7, EOS], [7, EOS])
    assert sequence.finish_reason is FinishReason.STOP
    assert records[0].scheduled[0].sampled == (7, EOS)
    scheduler.check()


def test_limits_of_a_step_are_kept() -> None:
    scheduler, records = make_scheduler(num_blocks=40, max_num_seqs=2, max_chunk_tokens=3, max_num_batched_tokens=5)
    for i in range(4):
        scheduler.add(make_sequence(f"r{i}", [i + 1] * 9, 12))
    drain(scheduler)
    assert max(len(record.scheduled) for record in records) == 2
    assert max(share.num_tokens for record in records for share in record.scheduled) == 3
    assert max(record.num_tokens for record in records) == 5


def test_a_running_prompt_is_shared_as_soon_as_it_is_computed() -> None:
    scheduler = Scheduler(SchedulerConfig(), PagedCache(CacheConfig(block_size=4, num_blocks=16), DictCache))
    first, second = make_sequence("first", list(range(1, 14)), 20), make_sequence("second", list(range(1, 14)), 20)
    scheduler.add(first)
    step(scheduler)
    scheduler.add(second)
    step(scheduler)
    assert second.num_cached_tokens == 12
    assert second.block_table[:3] == first.block_table[:3]
    drain(scheduler)
    assert first.token_ids == second.token_ids


def test_a_numerical_error_ends_its_request_and_no_other() -> None:
    """A36: a row of NaN once stopped the step, and with it everybody, again and again."""
    scheduler, records = make_scheduler()
    bad, good = make_sequence("bad", [1, 2], 12), make_sequence("good", [3, 4], 5)
    scheduler.add(bad)
    scheduler.add(good)
    output = scheduler.schedule()
    assert scheduler.update(output, [NumericalError("no number"), [7]]) == [bad]
    scheduler.check()
    assert (bad.finish_reason, bad.error, bad.output_token_ids) == (FinishReason.ERROR, "no number", [])
    assert (records[0].scheduled[0].state, good.output_token_ids) == ("error", [7])
    drain(scheduler)


def test_what_an_error_left_is_not_shared() -> None:
    """The blocks of a request whose logits were NaN may hold NaN: nobody finds them in the prefix cache."""
    scheduler = Scheduler(SchedulerConfig(), PagedCache(CacheConfig(block_size=4, num_blocks=8), DictCache))
    scheduler.add(make_sequence("bad", list(range(1, 14)), 20))
    scheduler.update(scheduler.schedule(), [NumericalError("no number")])
    assert scheduler.cache.prefix_cache.num_blocks == 0
    again = make_sequence("again", list(range(1, 14)), 20)
    scheduler.add(again)
    step(scheduler)
    assert again.num_cached_tokens == 0
    drain(scheduler)


def test_an_abort_while_the_step_is_computed_drops_its_tokens() -> None:
    scheduler, records = make_scheduler()
    scheduler.add(make_sequence("a", [1, 2], 12))
    scheduler.add(make_sequence("b", [3, 4], 4))
    output = scheduler.schedule()
    scheduler.abort("a")
    scheduler.update(output, execute(output))
    scheduler.check()
    assert records[0].aborted == ("a",)
    assert [(s.request_id, s.num_tokens, s.state) for s in records[0].scheduled] == [("a", 2, "abort"), ("b", 2, "running")]
    drain(scheduler)
    assert scheduler.cache.allocator.num_free == 8
