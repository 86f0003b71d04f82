"""A scheduler with an oracle in place of the model: a token follows from those before it, so the right output is known."""

from __future__ import annotations

import hashlib
from typing import Any

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.plan import Progress, SchedulerOutput
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import FinishReason, Sequence
from labcore.kv.paged_cache import PagedCache

EOS = 0


def oracle(tokens: list[int], index: int = 0) -> int:
    """The next token of a text, in the answer of this index: any fixed function will do."""
    return hashlib.blake2b(repr((tokens, index)).encode(), digest_size=1).digest()[0] % 40


def expected(prompt: list[int], max_length: int, index: int = 0) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < max_length:
        tokens.append(oracle(tokens, index))
        if tokens[-1] == EOS:
            break
    return tokens


def make_scheduler(
    num_blocks: int = 8, block_size: int = 4, prefix_cache: str = "none", kind: type[Scheduler] = Scheduler, **limits: Any
) -> tuple[Scheduler, list[StepRecord]]:
    """limits: fields of SchedulerConfig."""
    records: list[StepRecord] = []
    pool = CacheConfig(block_size=block_size, num_blocks=num_blocks, prefix_cache=prefix_cache)
    return kind(SchedulerConfig(**limits), PagedCache(pool), records.append), records


def make_sequence(name: str, prompt: list[int], max_length: int, n: int = 1, **more: Any) -> Sequence:
    return Sequence(
        request_id=name, token_ids=list(prompt), num_prompt_tokens=len(prompt), params=SamplingParams(n=n), seed=0,
        num_forks=n - 1, stop_token_ids=frozenset({EOS}), max_length=max_length, length_reason=FinishReason.LENGTH, **more,
    )  # fmt: skip


def execute(output: SchedulerOutput) -> list[list[int]]:
    """A token for each answer: `oracle` says what the answer of this index goes on with."""
    return [[oracle(s.sequence.token_ids, s.sequence.index + i) for i in range(s.num_samples)] for s in output.scheduled]


def step(scheduler: Scheduler) -> SchedulerOutput:
    return advance(scheduler)[0]


def advance(scheduler: Scheduler) -> tuple[SchedulerOutput, list[Progress]]:
    """A step, with what it promises and what it leaves checked."""
    output = scheduler.schedule()
    for share in output.scheduled:  # what the step promises is reserved
        held = len(share.sequence.block_table) * scheduler.cache.block_size
        start = share.sequence.num_computed_tokens
        assert held >= start + share.num_tokens
        written = share.sequence.block_table[start // scheduler.cache.block_size :]
        assert {scheduler.cache.allocator.refcount(block) for block in written} == {1}, "a block is written that others hold"
    progress = scheduler.update(output, execute(output))
    scheduler.check()
    return output, progress


def drain(scheduler: Scheduler, most: int = 2000) -> int:
    for steps in range(most):
        if not scheduler.has_unfinished:
            return steps
        step(scheduler)
    raise AssertionError(f"no end after {most} steps")
