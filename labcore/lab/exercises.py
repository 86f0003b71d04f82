"""Checks of the exercises. A check runs the learner's function against the engine and says what it found.

A function that still returns nothing is "not answered yet", which is no error: a notebook with open exercises runs through.

    >>> check_steps(lambda num_prompt_tokens, max_tokens, chunk: None)
    not answered yet: your function returned None for num_prompt_tokens=5, max_tokens=4, chunk=16
"""

from __future__ import annotations

from collections.abc import Callable

from labcore.lab.oracle import drive, scheduler_of, sequence


def check_blocks(answer: Callable[..., object]) -> None:
    """answer(num_prompt_tokens, max_tokens, block_size): KV blocks that a request holds at its end."""
    cases = [(5, 4, 4), (5, 3, 4), (1, 1, 16), (16, 1, 16), (17, 1, 16), (16, 2, 16), (100, 50, 16), (7, 9, 1)]
    names = ("num_prompt_tokens", "max_tokens", "block_size")
    _check(answer, [dict(zip(names, case, strict=True)) for case in cases], _blocks, "blocks")


def check_steps(answer: Callable[..., object]) -> None:
    """answer(num_prompt_tokens, max_tokens, chunk): steps until a lone request has ended, at most `chunk` tokens a step."""
    cases = [(5, 4, 16), (5, 4, 2), (16, 1, 16), (17, 1, 16), (1, 1, 1), (100, 20, 32), (64, 8, 8)]
    names = ("num_prompt_tokens", "max_tokens", "chunk")
    _check(answer, [dict(zip(names, case, strict=True)) for case in cases], _steps, "steps")


def _blocks(num_prompt_tokens: int, max_tokens: int, block_size: int) -> int:
    scheduler, records = scheduler_of(num_prompt_tokens + max_tokens, block_size)
    scheduler.add(sequence("a", num_prompt_tokens, max_tokens))
    drive(scheduler)
    return len(records[-1].scheduled[0].block_ids)


def _steps(num_prompt_tokens: int, max_tokens: int, chunk: int) -> int:
    scheduler, _ = scheduler_of(num_prompt_tokens + max_tokens, 1, max_num_batched_tokens=chunk)
    scheduler.add(sequence("a", num_prompt_tokens, max_tokens))
    return drive(scheduler)


def _check(answer: Callable[..., object], cases: list[dict[str, int]], truth: Callable[..., int], unit: str) -> None:
    for case in cases:
        got, expected = answer(**case), truth(**case)
        shown = ", ".join(f"{name}={value}" for name, value in case.items())
        if got is None:
            print(f"not answered yet: your function returned None for {shown}")
            return
        assert got == expected, f"{shown}: your function says {got!r}, the engine counted {expected} {unit}"
    print(f"right: {len(cases)} of {len(cases)} cases agree with the engine")
