"""Checks of chapter 09: the right answer passes, the usual slips do not, and the verdict says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from labcore.lab.exercises.experts import check_active, check_groups, check_touched


def touched(num_experts: int, k: int, tokens: int) -> float:
    return num_experts - num_experts * ((num_experts - k) / num_experts) ** tokens


def active(hidden_size: int, inner_size: int, num_layers: int, num_experts: int, k: int, total: int) -> int:
    return total - num_layers * (num_experts - k) * 3 * hidden_size * inner_size


def groups(expert_ids: list[list[int]]) -> list[tuple[int, list[int]]]:
    found: dict[int, list[int]] = {}
    for token, mine in enumerate(expert_ids):
        for expert in mine:
            found.setdefault(expert, []).append(token)
    return sorted(found.items())


CHECKS = {check_touched: touched, check_active: active, check_groups: groups}


@pytest.mark.parametrize(("check", "right"), CHECKS.items())
def test_the_right_answer_passes(check: Any, right: Callable[..., object]) -> None:
    assert check(right).right, check(right)


@pytest.mark.parametrize("check", CHECKS)
def test_no_answer_yet_and_an_error_are_told(check: Any) -> None:
    assert repr(check(lambda *a: None)).startswith("not answered yet")
    assert "your function raised ZeroDivisionError" in repr(check(lambda *a: 1 // 0))


WRONG: dict[str, tuple[Any, Callable[..., object], str]] = {
    "all tokens choose apart": (
        check_touched, lambda e, k, t: min(e, k * t), "tokens=4 your function says 8, the engine counts 5.46875 (may two",
    ),
    "a token may choose one expert twice": (check_touched, lambda e, k, t: e * (1 - (1 - 1 / e) ** (k * t)), "tokens=1 your"),
    "a text": (check_touched, lambda e, k, t: "2", "your function says '2'"),
    "two matrices": (check_active, lambda h, f, n, e, k, all: all - n * (e - k) * 2 * h * f, "weights"),
    "one layer": (check_active, lambda h, f, n, e, k, all: all - (e - k) * 3 * h * f, "num_layers=4"),
    "a share of everything": (check_active, lambda h, f, n, e, k, all: all * k // e, "hidden_size=256"),
    "in another order": (
        check_groups, lambda ids: sorted(groups(ids), key=lambda group: [m.index(group[0]) for m in ids if group[0] in m]),
        "for expert_ids=[[2, 0], [0, 1]] your function says ((2, (0,)), (1, (1,)), (0, (0, 1))), the engine has ((0, (0, 1))",
    ),
    "the best expert alone": (check_groups, lambda ids: groups([mine[:1] for mine in ids]), "the engine has"),
    "idle experts, too": (
        check_groups, lambda ids: [(e, [t for t, m in enumerate(ids) if e in m]) for e in range(8)], "(3, ())",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(name: str) -> None:
    check, answer, message = WRONG[name]
    verdict = check(answer)
    assert not verdict.right and message in repr(verdict), verdict
