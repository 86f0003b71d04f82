"""Checks of chapters 12 and 13: the right answer passes, the usual slips do not, and the verdict says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from labcore.engine.policies import MOST_OVERTAKEN
from labcore.lab.exercises.batching import check_first_token, check_iteration, check_next, check_reads, check_static

Check = Callable[..., Any]


def static(answers: list[int], seats: int) -> int:
    return sum(max(answers[at : at + seats]) for at in range(0, len(answers), seats))


def iteration(answers: list[int], seats: int) -> int:
    free = [0] * seats
    for tokens in answers:
        free[free.index(min(free))] += tokens
    return max(free)


def reads(prompt: int, chunk: int) -> int:
    return sum(min(start + chunk, prompt) for start in range(0, prompt, chunk))


RIGHT: list[tuple[Check, Check]] = [
    (check_static, static),
    (check_iteration, iteration),
    (check_next, lambda hits, overtaken: 0 if overtaken >= MOST_OVERTAKEN else hits.index(max(hits))),
    (check_first_token, lambda prompt, running, budget, chunk: -(-prompt // min(chunk, budget - running))),
    (check_reads, reads),
]
WRONG: list[tuple[Check, Check, str]] = [
    (check_static, iteration, "the scheduler counted 8 steps"),
    (check_static, lambda answers, seats: max(answers) * -(-len(answers) // seats), "your function says 10"),
    (check_static, lambda answers, seats: sum(max(answers[i : i + 2]) for i in range(0, len(answers), 2)), "answers=[3, 3, 3]"),
    (check_iteration, static, "your function says 8, the scheduler counted 7 steps"),
    (check_iteration, lambda answers, seats: -(-sum(answers) // seats), "your function says 6"),
    (check_iteration, lambda answers, seats: max(sum(answers[i::seats]) for i in range(seats)), "answers=[2, 9, 4, 4, 1, 7, 3]"),
    (check_next, lambda hits, overtaken: hits.index(max(hits)), "overtaken=16 your function says 1"),
    (check_next, lambda hits, overtaken: 0 if overtaken > 14 else hits.index(max(hits)), "overtaken=15"),
    (check_next, lambda hits, overtaken: max(range(len(hits)), key=lambda i: (hits[i], i)), "hits=[4, 4, 4]"),
    (check_next, lambda hits, overtaken: 0, "the policy takes place 1"),
    (check_first_token, lambda prompt, running, budget, chunk: -(-prompt // chunk), "the others compute first"),
    (check_first_token, lambda prompt, running, budget, chunk: prompt // min(chunk, budget - running), "prompt=7"),
    (check_first_token, lambda prompt, running, budget, chunk: -(-prompt // chunk) + 1, "gave it in step 6"),
    (check_reads, lambda prompt, chunk: prompt, "the steps read 192 tokens"),
    (check_reads, lambda prompt, chunk: sum(range(chunk, prompt + chunk, chunk)), "prompt=100"),
    (check_reads, lambda prompt, chunk: prompt * (prompt + 1) // 2, "prompt=96, chunk=96"),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_the_right_answer_passes(check: Check, answer: Check) -> None:
    assert check(answer).right, check(answer)


@pytest.mark.parametrize(("check", "answer", "says"), WRONG)
def test_a_slip_is_turned_down(check: Check, answer: Check, says: str) -> None:
    verdict = check(answer)
    assert not verdict.right and says in verdict.sentence, verdict


@pytest.mark.parametrize("check", [check for check, _ in RIGHT])
def test_an_open_answer_is_no_wrong_one(check: Check) -> None:
    assert check(lambda *arguments: None).sentence.startswith("not answered yet")


def test_only_the_slip_itself_is_explained() -> None:
    assert "compute first" not in check_first_token(lambda *arguments: 7).sentence
