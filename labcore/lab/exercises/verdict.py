"""What a check does: ask the learner's function case by case, and say what it found in one sentence.

A check never raises: a notebook with open or wrong exercises runs through. What is right is never typed in: the engine,
or a library, says it.

In a chapter an exercise is three cells: the question (`ex-NAME`), a starter (`ex-NAME-try`) whose function still returns
nothing and which ends in its check, and a folded solution (`ex-NAME-solution`) which ends in the same check.

    >>> judge(lambda a, b: a * b, {"a=2, b=2": (2, 2), "a=2, b=3": (2, 3)}, unlike(lambda a, b: a + b, "Python says"), "Python")
    wrong: for a=2, b=3 your function says 6, Python says 5
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

Answer = Callable[..., object]
Cases = Mapping[str, tuple[Any, ...]]  # the arguments, by what is shown of them
Fault = Callable[..., str]  # (got, *arguments): what is wrong with it, as the end of a sentence; nothing if it is right


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found; its repr is the sentence."""

    right: bool
    sentence: str

    def __repr__(self) -> str:
        return self.sentence


def judge(answer: Answer, cases: Cases, fault: Fault, who: str, stumble: Fault = lambda error, *arguments: "") -> Verdict:
    """Ask for each case, up to the first that is wrong.

    who: that the answers agree with, if they do. stumble: what an error comes from, where that is known.
    """
    for shown, arguments in cases.items():
        try:
            got = answer(*deepcopy(arguments))
        except Exception as error:  # the learner's code: whatever it raises is an answer, and no end of the notebook
            return Verdict(
                False, f"wrong: for {shown} your function raised {type(error).__name__}: {error}{stumble(error, *arguments)}"
            )
        if got is None:
            return Verdict(False, f"not answered yet: your function returned None for {shown}")
        if wrong := fault(got, *arguments):
            return Verdict(False, f"wrong: for {shown} {wrong}")
    return Verdict(True, f"right: {len(cases)} of {len(cases)} cases agree with {who}")


def named(names: str, *cases: tuple[Any, ...]) -> Cases:
    """Cases that show each argument with its name. names: "a, b"."""
    each = names.split(", ")
    return {", ".join(f"{name}={value!r}" for name, value in zip(each, case, strict=True)): case for case in cases}


def unlike(truth: Callable[..., object], says: str, unit: str = "", slip: Fault = lambda got, *arguments: "") -> Fault:
    """The fault of a value that must equal `truth(*arguments)`. slip: what a wrong one comes from, where that is known."""

    def fault(got: object, *arguments: Any) -> str:
        got, expected = _plain(got), truth(*arguments)
        if type(got) is type(expected) and got == expected:
            return ""
        return f"your function says {got!r}, {says} {expected!r} {unit}".rstrip() + slip(got, *arguments)

    return fault


def _plain(got: object) -> object:
    """Lists and arrays in the place of tuples are as good, and so are numpy's numbers."""
    if isinstance(got, dict):
        return {name: _plain(value) for name, value in got.items()}
    if isinstance(got, np.ndarray | np.generic):
        got = got.tolist()
    return tuple(map(_plain, got)) if isinstance(got, list | tuple) else got
