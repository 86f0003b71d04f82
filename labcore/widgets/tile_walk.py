"""The tile walk of one query: in each step a tile of keys, and what an online softmax keeps after it.

>>> TileWalk(q, keys, values, tile=4)    # q (d,), keys and values (tokens, d)    # doctest: +SKIP
"""

from __future__ import annotations

import numpy as np

from labcore.kernels.attention import walk
from labcore.widgets.replay import Replay, span

CAPTION = (
    "A column is a key. Above, its score; blue in the tile of this step, pale before, dotted where nobody has looked yet. The "
    "line is the largest score so far. Below, the share of the attention that each key has so far: a larger score makes all "
    "older shares smaller."
)


class TileWalk(Replay):
    """Scores, the largest so far, the sum so far, and by how much what was kept is scaled."""

    def __init__(self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, *, tile: int, link: str = "tiles") -> None:
        scores, steps, before = keys @ q / len(q) ** 0.5, [], -np.inf
        for start, end, running in walk(q[None], keys, values, tile=tile, causal=False):
            largest, total = float(running.largest.item()), float(running.total.item())
            steps.append((start, end, largest, float(np.exp(before - largest)), total))
            before = largest
        rows = [
            [span(start, end), f"{scores[start:end].max():.2f}", f"{largest:.2f}", f"{kept:.2f}", f"{total:.2f}"]
            for start, end, largest, kept, total in steps
        ]
        says = [
            f"The tile brings a larger score: what was kept is scaled by {kept:.2f}." if 0 < kept < 1 else
            "Nothing was kept before: the first largest score." if not start else "No larger score: what was kept stays as it is."
            for start, _, _, kept, _ in steps
        ]  # fmt: skip
        data = {"scores": scores.round(3).tolist(), "steps": [[*step[:2], *np.round(step[2:], 3).tolist()] for step in steps]}
        columns = ["keys", "largest in the tile", "largest so far", "scaled by", "sum so far"]
        super().__init__(
            title="The tile walk", caption=CAPTION, unit="tile", link=link, step=None, first=1, says=says, columns=columns,
            rows=rows, data=data,
        )  # fmt: skip
