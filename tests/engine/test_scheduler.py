"""The scheduler on its own, with an oracle in place of the model: books after every step, progress, and public failures.

No weights: a token is a function of the tokens before it, so whatever is scheduled how, the right output is known.
"""

from __future__ import annotations

import pytest
from oracle import EOS, drain, execute, make_scheduler, make_sequence, oracle, step

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.errors import InvalidRequest, NumericalError
from labcore.core.trace import StepRecord
from labcore.engine.plan import SchedulerOutput
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import FinishReason
from labcore.kv.paged_cache import PagedCache


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
    scheduler = Scheduler(
        SchedulerConfig(), PagedCache(CacheConfig(block_size=4, num_blocks=16, prefix_cache="radix")), records.append
    )
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
    scheduler.update(SchedulerOutput((share,)), execute(SchedulerOutput((share,))))
    drain(scheduler)
    assert sequence.output_token_ids == _continue(list(range(1, 21)), 6)


def test_a_failed_admission_keeps_nothing() -> None:
    """A04: a hit takes references; if the rest does not fit, they are given back, every time."""
    scheduler, _ = make_scheduler(num_blocks=10, prefix_cache="radix")
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
    [progress] = scheduler.update(output, [tokens])
    assert (progress.sequence, progress.tokens, progress.reason) == (sequence, (7, EOS), FinishReason.STOP)
    assert sequence.output_token_ids == [7, EOS]
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
    scheduler, _ = make_scheduler(num_blocks=16, prefix_cache="radix")
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
    ended = [one.sequence for one in scheduler.update(output, [NumericalError("no number"), [7]]) if one.reason]
    assert ended == [bad]
    scheduler.check()
    assert (bad.finish_reason, bad.error, bad.output_token_ids) == (FinishReason.ERROR, "no number", [])
    assert (records[0].scheduled[0].state, good.output_token_ids) == ("error", [7])
    drain(scheduler)


def test_what_an_error_left_is_not_shared() -> None:
    """The blocks of a request whose logits were NaN may hold NaN: nobody finds them in the prefix cache."""
    scheduler, _ = make_scheduler(num_blocks=8, prefix_cache="radix")
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
