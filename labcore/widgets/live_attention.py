"""A live control: where one head of one layer looks, from a token that the reader chooses, at positions that he may move.

It draws; the weights come from a function, which a chapter writes. It needs a kernel. In a page without one, a picture of
it in HTML stands in its place; shown are whole percents, so make it with settings whose weights are no near halves.

    >>> LiveAttention([" a", " cat"], lambda positions: weights)    # doctest: +SKIP
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import ipywidgets  # type: ignore[import-untyped]
import numpy as np

RIGHT = 'style="text-align: right; padding: 0 0.4rem"'
HEADER = f"<tr>{''.join(f'<th scope=col {RIGHT}>{name}</th>' for name in ('position', 'token', '', 'weight'))}</tr>"

Attention = Callable[[np.ndarray], np.ndarray]  # positions (tokens,) -> weights (layers, heads, tokens, tokens)


class LiveAttention(ipywidgets.VBox):
    """Five sliders in, a bar for each token out. Positions: `shift + stretch * (0, 1, 2, ...)`."""

    def __init__(self, pieces: Sequence[str], attention: Attention, *, num_kv_heads: int, layer: int = 0, head: int = 0) -> None:
        """pieces: the tokens as text. attention: called anew when positions move."""
        self._pieces, self._attention, self._num_kv_heads = pieces, attention, num_kv_heads
        self._known: dict[tuple[int, int], np.ndarray] = {}  # of the last choice of positions only
        self._turn = Lock()  # JupyterLab may deliver the changes of two controls on two threads
        layers, heads, tokens, _ = self._weights(0, 1).shape
        self.layer = _slider("layer", layer, layers - 1)
        self.head = _slider("head", head, heads - 1)
        self.query = _slider("from position", tokens - 1, tokens - 1)
        self.shift = _slider("shift", 0, 1000)
        self.stretch = _slider("stretch", 1, 4, least=1)
        self.bars = ipywidgets.HTML()
        self._controls = [self.layer, self.head, self.query, self.shift, self.stretch]
        super().__init__([*self._controls, self.bars])
        self.draw()
        for control in self._controls:
            control.observe(self.draw, names="value")

    def draw(self, change: object = None) -> None:
        """Show the present settings; another call waits until this one is done."""
        with self._turn:
            weights = self._weights(self.shift.value, self.stretch.value)
            head, query = self.head.value, self.query.value
            group = weights.shape[1] // self._num_kv_heads
            row = weights[self.layer.value, head, query, : query + 1]
            positions = self.shift.value + self.stretch.value * np.arange(query + 1)
            title = f"{_visible(self._pieces[query])} looks at (head {head} reads KV head {head // group}):"
            bars = "".join(map(_bar, positions, self._pieces, row))
            self.bars.value = f'<div>{title}</div><table style="margin: 0">{HEADER}{bars}</table>'

    def _weights(self, shift: int, stretch: int) -> np.ndarray:
        if (shift, stretch) not in self._known:
            self._known = {(shift, stretch): self._attention(shift + stretch * np.arange(len(self._pieces)))}
        return self._known[shift, stretch]

    def __repr__(self) -> str:
        return "LiveAttention()"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The control where there is a kernel to run it, its picture where there is none."""
        return {**super()._repr_mimebundle_(**kwargs), "text/html": self._picture()}

    def _picture(self) -> str:
        rows = "".join(f"<tr><th {RIGHT}>{c.description}</th><td>{c.value}</td></tr>" for c in self._controls)
        return f'<div class="lab-live"><table class="dataframe">{rows}</table>{self.bars.value}</div>'


def _slider(name: str, value: int, most: int, least: int = 0) -> Any:
    look = {"layout": ipywidgets.Layout(width="32em"), "style": {"description_width": "7em"}, "continuous_update": False}
    return ipywidgets.IntSlider(description=name, value=value, min=least, max=most, **look)


def _bar(position: int, piece: str, weight: float) -> str:
    percent = round(100 * float(weight))
    bar = f'<svg width="200" height="12" aria-hidden="true"><rect width="{2 * percent}" height="12" fill="#56b4e9"/></svg>'
    name = f"<td {RIGHT}>{position}</td><th scope=row {RIGHT}>{_visible(piece)}</th>"
    return f"<tr>{name}<td>{bar}</td><td {RIGHT}>{percent}%</td></tr>"


def _visible(piece: str) -> str:
    return html.escape(piece).replace(" ", "·").replace("\n", "⏎")
