"""Which tiles a causal prompt meets, and how many numbers are alive, for a length and a tile that the reader chooses.

>>> LiveTiles(head_dim=64)    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator

from ipywidgets import IntSlider  # type: ignore[import-untyped]

from labcore.kernels.attention import naive_numbers, tiled_numbers, tiles
from labcore.widgets.live import Live, setting

SIDE, SKIPPED, WHOLE, CUT = 180, "#e4e4e4", "#56b4e9", "#e69f00"
FINEST = 4  # pixels: smaller tiles have no edges drawn


class LiveTiles(Live):
    """A square: queries downward, keys to the right. Grey tiles are left out, orange ones are cut by the mask."""

    def __init__(self, head_dim: int) -> None:
        self._head_dim = head_dim
        self.length = setting(IntSlider, "length", 1024, min=64, max=4096, step=64)
        self.tile = setting(IntSlider, "tile", 128, min=32, max=512, step=32)
        super().__init__([self.length, self.tile])

    def shown(self) -> Iterator[str]:
        length, tile = self.length.value, self.tile.value
        rows, met, unit = [], 0, SIDE / length
        for start, end in tiles(length, tile):  # the queries start to end - 1 see the keys 0 to end - 1
            met += -(-end // tile)
            box = f'y="{start * unit:.1f}" height="{(end - start) * unit:.1f}"'
            rows.append(f'<rect x="0" width="{start * unit:.1f}" {box} fill="{WHOLE}"/>')
            rows.append(f'<rect x="{start * unit:.1f}" width="{(end - start) * unit:.1f}" {box} fill="{CUT}"/>')
        square, small = naive_numbers(length, length), tiled_numbers(length, length, self._head_dim, tile)
        text = f"{met:,} of {len(rows) ** 2 // 4:,} tiles are met; a head keeps {small:,} numbers in the place of {square:,}"
        edges = [start * unit for start, _ in tiles(length, tile)] if tile * unit > FINEST else []
        lines = "".join(f"M{at:.1f} 0V{SIDE}M0 {at:.1f}H{SIDE}" for at in edges)
        look = f'role="img" aria-label="{text}" shape-rendering="crispEdges" style="background: {SKIPPED}"'
        grid = f'<svg width="{SIDE}" height="{SIDE}" {look}>{"".join(rows)}<path d="{lines}" stroke="#fff"/></svg>'
        fewer = f"{square / small:,.1f} times fewer" if small < square else "no fewer: the prompt is too short for this tile"
        yield f"<div>{grid}</div><div>{text} ({fewer})</div>"
