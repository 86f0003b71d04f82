"""Checks of chapter 04's exercises: a right answer passes, a wrong one is told what is wrong. No kernel is needed for that."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labcore.lab.exercises.triton_masks import GUARD, check_idle_lanes, check_row_max


def test_idle_lanes() -> None:
    assert check_idle_lanes(lambda size, block: -size % block).right
    assert check_idle_lanes(lambda size, block: block - size % block).sentence == (
        "wrong: for size=64, block=64 your function says 64, the tiles have 0 such lanes"
    )


def row_max(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(x.max(1).values)


def padded_with_zeros(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    columns = x.shape[1]
    room = -columns % 64 or 64
    return out.copy_(torch.nn.functional.pad(x, (0, room if columns % 64 else 0)).max(1).values)


def without_a_mask(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    columns = x.shape[1]
    return out.copy_(x.as_strided((3, -(-columns // 64) * 64), (columns, 1)).max(1).values)


def beyond_the_end(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    out.as_strided((4,), (1,))[3] = 1.0
    return row_max(x, out)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (padded_with_zeros, "for columns=1 your kernel says [0.0, 0.0, 0.0], torch [-1000.0, -900.0, -800.0]: a lane behind"),
        (without_a_mask, "torch [-1000.0, -900.0, -800.0]: lanes behind the row's end read what lies there"),
        (beyond_the_end, "your kernel wrote 1 numbers behind the end of out"),
        (lambda x, out: out, "your kernel says [nan, nan, nan], torch [-1000.0, -900.0, -800.0]"),
        (lambda x, out: 3.0, "your function returned 3.0; expected out, of shape (3,)"),
        (lambda x, out: None, "not answered yet: your function returned None for columns=1"),
        (lambda x, out: x.nothing, "your function raised AttributeError"),
    ],
)
def test_each_slip_of_a_kernel_is_told(answer: Any, told: str) -> None:
    verdict = check_row_max(answer)
    assert not verdict.right and told in verdict.sentence


def test_a_right_kernel_passes_and_guards_are_wide() -> None:
    assert check_row_max(row_max).right
    assert GUARD >= 256
