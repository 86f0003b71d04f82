"""A product of a weight matrix with so many tokens: its bytes, its operations, and how many operations there are for a byte.

>>> LiveIntensity({"head": (49152, 576)})    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ipywidgets import Dropdown, IntSlider  # type: ignore[import-untyped]

from labcore.quant.gguf_blocks import FORMATS
from labcore.widgets.live import Live, setting

BYTES = {"F32": 4.0, **{name: block.bytes / block.elements for name, block in FORMATS.items()}}


class LiveIntensity(Live):
    """Tokens, a matrix and the format of its weights in; what must be moved and computed out."""

    def __init__(self, matrices: Mapping[str, tuple[int, int]]) -> None:
        """matrices: by name, (outputs, inputs)."""
        self._matrices = dict(matrices)
        self.tokens = setting(IntSlider, "tokens", 1, min=1, max=512)
        self.matrix = setting(Dropdown, "matrix", next(iter(self._matrices)), options=list(self._matrices))
        self.format = setting(Dropdown, "weights", "F32", options=list(BYTES))
        super().__init__([self.tokens, self.matrix, self.format])

    def shown(self) -> Iterator[str]:
        tokens, (outputs, inputs) = self.tokens.value, self._matrices[self.matrix.value]
        weights, rows = outputs * inputs * BYTES[self.format.value], 4 * tokens * (outputs + inputs)
        flops = 2 * tokens * outputs * inputs
        yield (
            f"<div>weights {weights / 1e6:,.2f} MB, rows in and out {rows / 1e6:,.2f} MB, operations {flops / 1e6:,.1f} million: "
            f"<b>{flops / (weights + rows):,.2f} operations for a byte</b></div>"
        )
