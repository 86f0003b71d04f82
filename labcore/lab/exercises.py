"""Checks of the exercises. A check runs the learner's function against the engine and says what it found.

A check never raises: a notebook with open or wrong exercises runs through. What it returns is shown as a sentence.

In a chapter an exercise is three cells: the question (`ex-NAME`), a starter (`ex-NAME-try`) whose function still returns
nothing and which ends in its check, and a folded solution (`ex-NAME-solution`) which ends in the same check.

    >>> check_steps(lambda num_prompt_tokens, max_tokens, chunk: None)
    not answered yet: your function returned None for num_prompt_tokens=5, max_tokens=4, chunk=16
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labcore.lab.oracle import drive, scheduler_of, sequence


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found; its repr is the sentence."""

    right: bool
    sentence: str

    def __repr__(self) -> str:
        return self.sentence


def check_blocks(answer: Callable[..., object]) -> Verdict:
    """answer(num_prompt_tokens, max_tokens, block_size): KV blocks that a request holds at its end."""
    cases = [(5, 4, 4), (5, 3, 4), (1, 1, 16), (16, 1, 16), (17, 1, 16), (16, 2, 16), (100, 50, 16), (7, 9, 1)]
    names = ("num_prompt_tokens", "max_tokens", "block_size")
    return check_cases(answer, [dict(zip(names, case, strict=True)) for case in cases], _blocks, "blocks")


def check_steps(answer: Callable[..., object]) -> Verdict:
    """answer(num_prompt_tokens, max_tokens, chunk): steps until a lone request has ended, at most `chunk` tokens a step."""
    cases = [(5, 4, 16), (5, 4, 2), (16, 1, 16), (17, 1, 16), (1, 1, 1), (100, 20, 32), (64, 8, 8)]
    names = ("num_prompt_tokens", "max_tokens", "chunk")
    return check_cases(answer, [dict(zip(names, case, strict=True)) for case in cases], _steps, "steps")


def _blocks(num_prompt_tokens: int, max_tokens: int, block_size: int) -> int:
    scheduler, records = scheduler_of(num_prompt_tokens + max_tokens, block_size)
    scheduler.add(sequence("a", num_prompt_tokens, max_tokens))
    drive(scheduler)
    return len(records[-1].scheduled[0].block_ids)


def _steps(num_prompt_tokens: int, max_tokens: int, chunk: int) -> int:
    scheduler, _ = scheduler_of(num_prompt_tokens + max_tokens, 1, max_num_batched_tokens=chunk)
    scheduler.add(sequence("a", num_prompt_tokens, max_tokens))
    return drive(scheduler)


def check_cases(
    answer: Callable[..., object], cases: list[dict[str, int]], truth: Callable[..., object], unit: str = ""
) -> Verdict:
    """Call `answer` and `truth` with each case; they must say the same."""
    for case in cases:
        shown = ", ".join(f"{name}={value}" for name, value in case.items())
        expected = truth(**case)
        try:
            got = answer(**case)
        except Exception as error:  # the learner's code: whatever it raises is an answer, and no end of the notebook
            return Verdict(False, f"wrong: for {shown} your function raised {type(error).__name__}: {error}")
        if got is None:
            return Verdict(False, f"not answered yet: your function returned None for {shown}")
        if got != expected:
            return Verdict(False, f"wrong: for {shown} your function says {got!r}, the engine counted {expected} {unit}".rstrip())
    return Verdict(True, f"right: {len(cases)} of {len(cases)} cases agree with the engine")
