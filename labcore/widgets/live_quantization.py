"""A row of weights in so many bits: what each becomes, and what one outlier does to all who share a scale with it.

>>> LiveQuantization(np.random.default_rng(0).standard_normal(64))    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ipywidgets import Dropdown, IntSlider  # type: ignore[import-untyped]

from labcore.quant.error import relative_error
from labcore.widgets.live import Live, setting

WIDTH, HEIGHT, BLOCK, OUTLIER = 640, 200, 32, 5  # pixels; weights in a block; the place of the weight that is made larger


class LiveQuantization(Live):
    """Three settings in; a grey ring where a weight is, a dot where it comes back. The outlier lies outside the picture."""

    def __init__(self, row: np.ndarray, *, bits: int = 4, outlier: int = 1) -> None:
        """row: weights, a multiple of 32. outlier: how many times as large as the largest weight one of them is made."""
        self._row = np.asarray(row, np.float32)
        self.bits = setting(IntSlider, "bits", bits, min=2, max=8)
        self.outlier = setting(IntSlider, "outlier", outlier, min=1, max=50)
        self.shared = setting(Dropdown, "one scale for", "the row", options=["the row", "32 weights"])
        super().__init__([self.bits, self.outlier, self.shared])

    def shown(self) -> Iterator[str]:
        row, largest, top = self._row.copy(), np.abs(self._row).max(), 2 ** (self.bits.value - 1) - 1
        row[OUTLIER] = largest * self.outlier.value
        groups = row.reshape(-1, BLOCK if self.shared.value == "32 weights" else row.size)
        scale = np.abs(groups).max(axis=1, keepdims=True) / top
        quants = np.rint(groups / scale)
        back, others = (quants * scale).ravel(), np.arange(row.size) != OUTLIER
        # half of the height is for weights that are rounded up, to at most twice of what they were
        x, middle = (np.arange(row.size) + 0.5) * WIDTH / row.size, HEIGHT / 2
        marks = "".join(
            f'<circle cx="{at:.0f}" cy="{middle * (1 - 0.49 * was / largest):.0f}" r="4" fill="none" stroke="#999"/>'
            f'<circle cx="{at:.0f}" cy="{middle * (1 - 0.49 * now / largest):.0f}" r="2.5" fill="#0072b2"/>'
            for at, was, now in zip(x[others], row[others], back[others], strict=True)
        )
        levels, error = len(np.unique(quants.ravel()[others])), relative_error(row[others], back[others])
        says = f"the others: {levels} of {2 * top + 1} levels in use, error {100 * error:.1f}% of their size"
        yield (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" style="width: 100%; max-width: {WIDTH}px" role="img" aria-label="{says}">'
            f"{marks}</svg><div>{says}</div>"
        )
