"""Checks on a request's way through the engine: the scheduler itself counts, with an oracle for a model.

>>> check_steps(lambda num_prompt_tokens, max_tokens, chunk: None)
not answered yet: your function returned None for num_prompt_tokens=5, max_tokens=4, chunk=16
"""

from __future__ import annotations

from labcore.core.errors import InvalidRequest
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike
from labcore.lab.oracle import drive, scheduler_of, sequence

COUNTED = "the engine counted"


def check_blocks(answer: Answer) -> Verdict:
    """answer(num_prompt_tokens, max_tokens, block_size): KV blocks that a request holds at its end."""
    cases = [(5, 4, 4), (5, 3, 4), (1, 1, 16), (16, 1, 16), (17, 1, 16), (16, 2, 16), (100, 50, 16), (7, 9, 1)]
    return judge(
        answer, named("num_prompt_tokens, max_tokens, block_size", *cases), unlike(_blocks, COUNTED, "blocks"), "the engine"
    )


def check_steps(answer: Answer) -> Verdict:
    """answer(num_prompt_tokens, max_tokens, chunk): steps until a lone request has ended, at most `chunk` tokens a step."""
    cases = [(5, 4, 16), (5, 4, 2), (16, 1, 16), (17, 1, 16), (1, 1, 1), (100, 20, 32), (64, 8, 8)]
    return judge(answer, named("num_prompt_tokens, max_tokens, chunk", *cases), unlike(_steps, COUNTED, "steps"), "the engine")


def check_pool(answer: Answer) -> Verdict:
    """answer(num_requests, num_prompt_tokens, max_tokens, block_size): blocks of the smallest pool where all run undisturbed.

    All arrive together; none waits and none is preempted.
    """
    cases = [(8, 20, 30, 4), (1, 5, 4, 4), (3, 16, 1, 16), (2, 16, 2, 16), (5, 7, 9, 1)]
    names = "num_requests, num_prompt_tokens, max_tokens, block_size"
    return judge(answer, named(names, *cases), unlike(_pool, COUNTED, "blocks"), "the engine")


def _blocks(num_prompt_tokens: int, max_tokens: int, block_size: int) -> int:
    scheduler, records = scheduler_of(num_prompt_tokens + max_tokens, block_size)
    scheduler.add(sequence("a", num_prompt_tokens, max_tokens))
    drive(scheduler)
    return len(records[-1].scheduled[0].block_ids)


def _steps(num_prompt_tokens: int, max_tokens: int, chunk: int) -> int:
    scheduler, _ = scheduler_of(num_prompt_tokens + max_tokens, 1, max_num_batched_tokens=chunk)
    scheduler.add(sequence("a", num_prompt_tokens, max_tokens))
    return drive(scheduler)


def _pool(num_requests: int, num_prompt_tokens: int, max_tokens: int, block_size: int) -> int:
    """The first pool, from above, in which somebody is disturbed, and one block more."""
    for num_blocks in range(num_requests * (num_prompt_tokens + max_tokens), 0, -1):
        scheduler, records = scheduler_of(num_blocks, block_size, watermark_blocks=0)
        try:
            for i in range(num_requests):
                scheduler.add(sequence(str(i), num_prompt_tokens, max_tokens))
        except InvalidRequest:  # too small for even one
            return num_blocks + 1
        drive(scheduler)
        if any(record.waiting or record.preempted for record in records):
            return num_blocks + 1
    return 1
