"""Checks on tiles and masks: counting, and a kernel that is run at odd sizes between guards.

>>> check_idle_lanes(lambda size, block: None)
not answered yet: your function returned None for size=1, block=64
"""

from __future__ import annotations

import numpy as np
import torch

from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike

GUARD = 256  # numbers on either side of x, and behind out: more than a tile is likely to reach
ROWS = 3


def check_idle_lanes(answer: Answer) -> Verdict:
    """answer(size, block): lanes that the mask switches off when tiles of `block` go over `size` numbers."""

    def counted(size: int, block: int) -> int:
        tiles = np.arange(0, size, block)[:, None] + np.arange(block)
        return int(np.count_nonzero(tiles >= size))

    cases = named("size, block", (1, 64), (63, 64), (64, 64), (65, 64), (130, 64), (4097, 1024))
    return judge(answer, cases, unlike(counted, "the tiles have", "such lanes"), "the tiles")


def check_row_max(answer: Answer) -> Verdict:
    """answer(x, out): launch a kernel that writes the maximum of each row of x (3, columns) into out (3,); return out."""
    rooms: dict[int, torch.Tensor] = {}

    def guarded(columns: int) -> object:
        x = torch.full((2 * GUARD + ROWS * columns,), 1e30)[GUARD:-GUARD].view(ROWS, columns)
        x[:] = _rows(columns)
        rooms[columns] = torch.full((ROWS + GUARD,), torch.nan)
        return answer(x, rooms[columns][:ROWS])

    def fault(got: object, columns: int) -> str:
        want, beyond = _rows(columns).max(1).values, rooms[columns][ROWS:]
        if not isinstance(got, torch.Tensor) or got.shape != want.shape:
            return f"your function returned {got!r}; expected out, of shape ({ROWS},)"
        if not beyond.isnan().all():
            return f"your kernel wrote {int((~beyond.isnan()).sum())} numbers behind the end of out"
        if torch.equal(got, want):
            return ""
        slip = ": a lane behind the row's end counted as 0" if (got == 0).any() else ""
        slip = slip or (": lanes behind the row's end read what lies there" if (got > want).any() else "")
        return f"your kernel says {got.tolist()}, torch {want.tolist()}{slip}"

    return judge(guarded, named("columns", *[(n,) for n in (1, 3, 17, 63, 64, 65, 130)]), fault, "torch, between guards")


def _rows(columns: int) -> torch.Tensor:
    """All below zero, and each row above the one before: what is read by mistake is larger than what is right."""
    return 100.0 * torch.arange(ROWS)[:, None] - 1000 + torch.arange(columns) % 7
