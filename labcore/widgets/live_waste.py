"""How much of a KV memory holds tokens, for a block size and a length of answers that the reader chooses.

>>> LiveWaste(num_slots=65536, context=2048)    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ipywidgets import IntSlider, SelectionSlider  # type: ignore[import-untyped]

from labcore.kv.block_table import blocks_for
from labcore.widgets.live import Live, setting

USED, EMPTY = "#56b4e9", "repeating-linear-gradient(45deg, #999 0 2px, transparent 2px 6px)"
SIZES = [1 << i for i in range(8)]


def lengths(mean_prompt: int, mean_answer: int, context: int, count: int = 4096) -> list[int]:
    """Tokens of so many requests at their end: most are short, a few are very long."""
    rng = np.random.default_rng(0)
    drawn = 2 + rng.exponential(mean_prompt, count).astype(int) + rng.exponential(mean_answer, count).astype(int)
    return np.minimum(drawn, context).tolist()


def fitting(lengths: list[int], block_size: int, num_slots: int) -> list[int]:
    """Those that lie in a memory at the same time: one after the other is taken in until one has no room."""
    ends = np.cumsum([blocks_for(length, block_size) * block_size for length in lengths])
    return lengths[: int(np.searchsorted(ends, num_slots, side="right"))]


class LiveWaste(Live):
    """A bar a way to hand out the same memory: blue holds tokens, hatched is taken and empty."""

    def __init__(self, num_slots: int, context: int, *, mean_prompt: int = 160) -> None:
        self._num_slots, self._context, self._mean_prompt = num_slots, context, mean_prompt
        self.block_size = setting(SelectionSlider, "block size", 16, options=SIZES)
        self.answer = setting(IntSlider, "mean answer", 336, min=16, max=1024, step=16)
        super().__init__([self.block_size, self.answer])

    def shown(self) -> Iterator[str]:
        asked, size = lengths(self._mean_prompt, self.answer.value, self._context), self.block_size.value
        ways = {f"a whole context of {self._context:,}": self._context, f"blocks of {size}": size}
        bars = []
        for name, slots in ways.items():
            inside = fitting(asked, slots, self._num_slots)
            used, taken = sum(inside), sum(blocks_for(length, slots) * slots for length in inside)
            parts = "".join(
                f'<span style="width: {100 * part / self._num_slots:.1f}%; background: {ground}"></span>'
                for part, ground in ((used, USED), (taken - used, EMPTY))
            )
            entries = sum(blocks_for(length, slots) for length in inside) / len(inside)
            facts = f"{name}: {len(inside)} requests fit, {100 * used / taken:.1f}% of what they take holds tokens"
            bar = '<div style="display: flex; height: 1.4em; border: 1px solid #999; max-width: 40em">'
            bars.append(f"<div>{facts}; a table has {entries:.1f} entries</div>{bar}{parts}</div>")
        yield "".join(bars)
