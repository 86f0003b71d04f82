"""Where one head of one layer looks, from a token that the reader chooses, at positions that he may move.

It draws; the weights come from a function, which a chapter writes. Shown are whole percents, so make it with settings
whose weights are no near halves.

    >>> LiveAttention([" a", " cat"], lambda positions: weights)    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from ipywidgets import IntSlider  # type: ignore[import-untyped]

from labcore.widgets.live import Live, setting, visible

RIGHT = 'style="text-align: right; padding: 0 0.4rem"'
HEADER = f"<tr>{''.join(f'<th scope=col {RIGHT}>{name}</th>' for name in ('position', 'token', '', 'weight'))}</tr>"

Attention = Callable[[np.ndarray], np.ndarray]  # positions (tokens,) -> weights (layers, heads, tokens, tokens)


class LiveAttention(Live):
    """Five sliders in, a bar for each token out. Positions: `shift + stretch * (0, 1, 2, ...)`."""

    def __init__(self, pieces: Sequence[str], attention: Attention, *, num_kv_heads: int, layer: int = 0, head: int = 0) -> None:
        """pieces: the tokens as text. attention: called anew when positions move."""
        self._pieces, self._attention, self._num_kv_heads = pieces, attention, num_kv_heads
        self._known: dict[tuple[int, int], np.ndarray] = {}  # of the last choice of positions only
        layers, heads, tokens, _ = self._weights(0, 1).shape
        self.layer = setting(IntSlider, "layer", layer, max=layers - 1)
        self.head = setting(IntSlider, "head", head, max=heads - 1)
        self.query = setting(IntSlider, "from position", tokens - 1, max=tokens - 1)
        self.shift = setting(IntSlider, "shift", 0, max=1000)
        self.stretch = setting(IntSlider, "stretch", 1, min=1, max=4)
        super().__init__([self.layer, self.head, self.query, self.shift, self.stretch])

    def shown(self) -> Iterator[str]:
        weights = self._weights(self.shift.value, self.stretch.value)
        head, query = self.head.value, self.query.value
        group = weights.shape[1] // self._num_kv_heads
        row = weights[self.layer.value, head, query, : query + 1]
        positions = self.shift.value + self.stretch.value * np.arange(query + 1)
        title = f"{visible(self._pieces[query])} looks at (head {head} reads KV head {head // group}):"
        yield f'<div>{title}</div><table style="margin: 0">{HEADER}{"".join(map(_bar, positions, self._pieces, row))}</table>'

    def _weights(self, shift: int, stretch: int) -> np.ndarray:
        if (shift, stretch) not in self._known:
            self._known = {(shift, stretch): self._attention(shift + stretch * np.arange(len(self._pieces)))}
        return self._known[shift, stretch]


def _bar(position: int, piece: str, weight: float) -> str:
    percent = round(100 * float(weight))
    bar = f'<svg width="200" height="12" aria-hidden="true"><rect width="{2 * percent}" height="12" fill="#56b4e9"/></svg>'
    name = f"<td {RIGHT}>{position}</td><th scope=row {RIGHT}>{visible(piece)}</th>"
    return f"<tr>{name}<td>{bar}</td><td {RIGHT}>{percent}%</td></tr>"
