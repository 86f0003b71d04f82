"""Bytes that a normalisation moves, loop by loop: as an array library writes it, then fused.

>>> BytesMoved(512, 512).rows[-1]
['fused', 'scale and weigh', 'x (cached)', 'out', '2,097,152']
"""

from __future__ import annotations

from labcore.widgets.replay import Replay

CAPTION = (
    "Each box is an array in memory. Blue ones are read in this loop, orange ones written; a dotted one comes from the cache, "
    "for nothing. The bars are the bytes moved so far. The weight and the scale of a row are small: they are left out."
)
PASSES = [  # form, loop, reads, writes, what happens
    ("unfused", "square", "x", "squares", "Every number is read, and its square is written into an array of its own."),
    ("unfused", "sum", "squares", "", "The squares are read again, to be added up row by row."),
    ("unfused", "scale", "x", "scaled", "x is read a second time, and a second array is written that nobody asked for."),
    ("unfused", "weigh", "scaled", "out", "It is read back and weighted. Seven arrays have gone by, for one that was wanted."),
    ("fused", "square and sum", "x", "", "A row is read; squares and sum stay in registers. Nothing is written."),
    ("fused", "scale and weigh", "x (cached)", "out", "The row is still in the cache. Scaled, weighted, written: two arrays."),
]  # fmt: skip


class BytesMoved(Replay):
    """rms_norm of (rows, dim) float32 numbers."""

    def __init__(self, rows: int, dim: int, *, link: str = "bytes") -> None:
        so_far, steps = {"unfused": 0, "fused": 0}, []
        for form, name, reads, writes, _ in PASSES:
            so_far[form] += 4 * rows * dim * (("cache" not in reads) + bool(writes))
            steps.append([form, name, reads, writes, *so_far.values()])
        table = [[*step[:3], step[3] or "nothing", f"{step[4] if step[0] == 'unfused' else step[5]:,}"] for step in steps]
        super().__init__(
            title=f"Bytes moved by rms_norm, {rows} x {dim}", caption=CAPTION, unit="loop", link=link, step=None, first=1,
            says=[one[-1] for one in PASSES], columns=["form", "does", "reads", "writes", "bytes so far"], rows=table,
            data={"steps": steps},
        )  # fmt: skip
