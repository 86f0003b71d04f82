"""Checks on batching, policies and chunks: the scheduler itself counts, with an oracle for a model.

>>> check_static(lambda answers, seats: None)
not answered yet: your function returned None for answers=[5, 2, 2, 3], seats=2
"""

from __future__ import annotations

from labcore.engine.policies import MOST_OVERTAKEN, longest_prefix
from labcore.engine.sequence import Sequence
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike
from labcore.lab.oracle import drive, scheduler_of, sequence

COUNTED = "the scheduler counted"
BATCHES = [([5, 2, 2, 3], 2), ([1], 4), ([3, 3, 3], 1), ([2, 9, 4, 4, 1, 7, 3], 3), ([6, 1, 1, 1, 1, 1], 2), ([4] * 8, 8)]


def check_static(answer: Answer) -> Verdict:
    """answer(answers, seats): steps of static batching. answers: tokens that each request wants, in the order of arrival."""
    return judge(answer, named("answers, seats", *BATCHES), unlike(_static, COUNTED, "steps"), "the scheduler")


def check_iteration(answer: Answer) -> Verdict:
    """answer(answers, seats): steps with iteration-level scheduling; all have arrived, the first come are the first served."""
    return judge(answer, named("answers, seats", *BATCHES), unlike(_iteration, COUNTED, "steps"), "the scheduler")


def check_next(answer: Answer) -> Verdict:
    """answer(hits, overtaken): place in the queue of who is admitted next under "lpm".

    hits: of each that waits, the tokens found in the cache. overtaken: times that the first was passed over already.
    """
    cases = [([0, 8, 4], 0), ([4, 4, 4], 0), ([0, 8, 9, 9], 3), ([0, 9], MOST_OVERTAKEN - 1), ([0, 9], MOST_OVERTAKEN), ([0], 0)]
    return judge(answer, named("hits, overtaken", *cases), unlike(_next, "the policy takes place"), "the policy")


def check_first_token(answer: Answer) -> Verdict:
    """answer(prompt, running, budget, chunk): the step, from 1, that gives a long prompt its first token.

    running: requests that came before and compute a token each in every step.
    """
    cases = [(96, 4, 128, 16), (96, 4, 16, 16), (7, 0, 8, 8), (100, 3, 33, 64), (1, 2, 4, 1), (64, 8, 16, 4)]
    fault = unlike(_first_token, "the scheduler gave it in step", slip=_budget_slip)
    return judge(answer, named("prompt, running, budget, chunk", *cases), fault, "the scheduler")


def check_reads(answer: Answer) -> Verdict:
    """answer(prompt, chunk): tokens whose keys and values are read, in all steps together, until a lone prompt is computed."""
    cases = [(96, 96), (96, 32), (100, 32), (7, 1), (64, 16), (5, 64)]
    return judge(answer, named("prompt, chunk", *cases), unlike(_reads, "the steps read", "tokens"), "the records of the steps")


def _static(answers: list[int], seats: int) -> int:
    scheduler, records = scheduler_of(256, 4, max_num_seqs=seats)
    for at in range(0, len(answers), seats):
        for i, tokens in enumerate(answers[at : at + seats], at):
            scheduler.add(sequence(str(i), 1, tokens))
        drive(scheduler)
    return len(records)


def _iteration(answers: list[int], seats: int) -> int:
    scheduler, _ = scheduler_of(256, 4, max_num_seqs=seats)
    for i, tokens in enumerate(answers):
        scheduler.add(sequence(str(i), 1, tokens))
    return drive(scheduler)


class _Hits:
    """Says of a request as many tokens as its prompt is long: the policy asks nothing else."""

    def match_length(self, token_ids: list[int], domain: object) -> int:
        return len(token_ids)


def _next(hits: list[int], overtaken: int) -> int:
    queue: list[Sequence] = [sequence(str(i), tokens, 1) for i, tokens in enumerate(hits)]
    queue[0].num_overtaken = overtaken
    return queue.index(longest_prefix(queue, _Hits()))  # type: ignore[arg-type]


def _first_token(prompt: int, running: int, budget: int, chunk: int) -> int:
    scheduler, records = scheduler_of(
        1024, 4, max_num_batched_tokens=budget, max_chunk_tokens=chunk, max_num_seqs=running + 1, watermark_blocks=0
    )
    for i in range(running):
        scheduler.add(sequence(str(i), 1, 2 * prompt + 2))
    if running:
        drive(scheduler, most_steps=-(-running // budget))  # their prompts
    begun = scheduler.num_steps
    scheduler.add(sequence("long", prompt, 1))
    drive(scheduler)
    return next(record.step for record in records if "long" in record.finished) - begun + 1


def _budget_slip(got: object, prompt: int, running: int, budget: int, chunk: int) -> str:
    if chunk > budget - running and got == -(-prompt // chunk):
        return " (the others compute first: only what they leave of the budget is there for a chunk)"
    return ""


def _reads(prompt: int, chunk: int) -> int:
    """A step reads what is computed of a sequence after it: its new tokens see all before them, and themselves."""
    scheduler, records = scheduler_of(256, 4, max_chunk_tokens=chunk)
    scheduler.add(sequence("a", prompt, 1))
    drive(scheduler)
    return sum(share.num_computed_tokens for record in records for share in record.scheduled)
