"""Experts that a batch touches, for a number of experts, a choice of k and a batch that the reader sets.

>>> LiveExperts()    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator

from ipywidgets import IntSlider, SelectionSlider  # type: ignore[import-untyped]

from labcore.model.expert_load import expected_experts
from labcore.widgets.live import Live, setting

NUMBERS, BATCHES = (4, 8, 16, 32, 64, 128, 256), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WIDTH, HEIGHT, TOUCHED, MOST = 480, 110, "#56b4e9", "#999999"


class LiveExperts(Live):
    """A bar a batch: the experts it touches under even routing, of all there are; the batch that was chosen is in colour."""

    def __init__(self) -> None:
        self.experts = setting(SelectionSlider, "experts", 8, options=NUMBERS)
        self.chosen = setting(IntSlider, "k", 2, min=1, max=16)
        self.batch = setting(SelectionSlider, "batch", 8, options=BATCHES)
        super().__init__([self.experts, self.chosen, self.batch])

    def shown(self) -> Iterator[str]:
        experts, batch_size = self.experts.value, self.batch.value
        k = min(self.chosen.value, experts)
        column, bars = WIDTH / len(BATCHES), []
        for i, batch in enumerate(BATCHES):
            high = HEIGHT * expected_experts(experts, k, batch) / experts
            colour = TOUCHED if batch == batch_size else MOST
            bars.append(f'<rect x="{i * column:.1f}" width="{column - 4:.1f}" y="{HEIGHT - high:.1f}" height="{high:.1f}" '
                        f'fill="{colour}"/><text x="{i * column + column / 2 - 2:.1f}" y="{HEIGHT + 14}" font-size="11" '
                        f'text-anchor="middle" fill="currentColor">{batch}</text>')  # fmt: skip
        touched = expected_experts(experts, k, batch_size)
        says = (
            f"{k} of {experts} experts a token: {100 * k / experts:.1f}% of their weights are active; a batch of {batch_size} "
            f"touches {touched:.1f} ({100 * touched / experts:.0f}%), {batch_size * k / touched:.1f} tokens for each"
        )
        yield (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 18}" style="width: 100%; max-width: {WIDTH}px" role="img" aria-label="{says}">'
            f"{''.join(bars)}</svg><div>{says}</div>"
        )
