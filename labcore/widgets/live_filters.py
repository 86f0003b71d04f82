"""One row of logits under the reader's own temperature, top-k, top-p and min-p: the law that is left, and what it lost.

>>> LiveFilters(row, piece=tokenizer.decode)    # row (vocab_size,)    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from ipywidgets import FloatSlider, IntSlider  # type: ignore[import-untyped]

from labcore.engine.sampler import probabilities
from labcore.engine.sampling_params import SamplingParams
from labcore.widgets.filters import entropy
from labcore.widgets.live import Live, setting, visible

BEFORE, AFTER, WIDE = "#8a929d", "#56b4e9", 16  # em of a bar of 100%, for the widest


class LiveFilters(Live):
    """The most probable tokens of the model: an outline is the model's law, a bar what the rules make of it."""

    def __init__(self, logits: np.ndarray, piece: Callable[[list[int]], str], num_shown: int = 12) -> None:
        self._logits, self._own = logits, probabilities(logits, SamplingParams())
        self._shown = np.argsort(-self._own, kind="stable")[:num_shown].tolist()
        self._pieces = [visible(piece([token])) for token in self._shown]
        self.temperature = setting(FloatSlider, "temperature", 0.8, min=0.0, max=2.0, step=0.1)
        self.top_k = setting(IntSlider, "top_k", 0, max=50)
        self.top_p = setting(FloatSlider, "top_p", 0.9, min=0.05, max=1.0, step=0.05)
        self.min_p = setting(FloatSlider, "min_p", 0.0, max=0.5, step=0.01)
        super().__init__([self.temperature, self.top_k, self.top_p, self.min_p])

    def shown(self) -> Iterator[str]:
        chosen = {name: getattr(self, name).value for name in ("temperature", "top_k", "top_p", "min_p")}
        law = probabilities(self._logits, SamplingParams(**chosen))
        widest = max(self._own.max(), law.max())
        lines = "".join(
            f"<tr><th scope=row style='text-align: right'>{piece}</th><td>{_bar(self._own[token], law[token], widest)}</td>"
            f"<td style='text-align: right'>{f'{law[token]:.1%}' if law[token] else '×'}</td></tr>"
            for token, piece in zip(self._shown, self._pieces, strict=True)
        )
        left, moved = int(np.count_nonzero(law)), np.abs(law - self._own).sum() / 2
        yield (
            f"<table>{lines}</table><div>{left:,} of {len(law):,} tokens left; entropy {entropy(law):.2f} bits, of the model "
            f"{entropy(self._own):.2f}; total variation from the model's law {moved:.3f}</div>"
        )


def _bar(before: float, after: float, widest: float) -> str:
    outline, fill = (f"{WIDE * mass / widest:.2f}em" for mass in (before, after))
    inner = f"<div style='width: {fill}; height: 0.9em; background: {AFTER}'></div>"
    frame = f"box-sizing: border-box; width: {outline}; margin-top: -0.9em; height: 0.9em; border: 1px dashed {BEFORE}"
    return f"<div style='width: {WIDE}em'>{inner}<div style='{frame}'></div></div>"
