"""One cell of a matrix of settings, chosen by the reader and run when a setting changes.

>>> LiveMatrix({"n": (1, 3)}, lambda n: (True, {"answers": n})).out.value    # doctest: +SKIP
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ipywidgets import Dropdown  # type: ignore[import-untyped]

from labcore.widgets.live import Live, setting

GOOD, BAD = "#009e73", "#d55e00"
Answer = Callable[..., tuple[bool, Mapping[str, object]]]  # whether all is as it must be, and what is shown of it, in order


class LiveMatrix(Live):
    """A choice for each dimension, and below what `answer` found there."""

    def __init__(self, dimensions: Mapping[str, tuple[Any, ...]], answer: Answer, **first: Any) -> None:
        """first: what is chosen at first, where that is not the first value of a dimension."""
        self._answer = answer
        self._values = {name: {str(value): value for value in values} for name, values in dimensions.items()}
        self.choices = {  # by what is shown: a Dropdown takes the value None for no choice
            name: setting(Dropdown, name, str(first.get(name, values[0])), options=list(self._values[name]))
            for name, values in dimensions.items()
        }
        super().__init__(list(self.choices.values()))

    def shown(self) -> Iterator[str]:
        right, facts = self._answer(**{name: self._values[name][choice.value] for name, choice in self.choices.items()})
        left = ' style="text-align: left"'
        rows = "".join(f"<tr><th{left}>{html.escape(n)}</th><td{left}>{html.escape(str(v))}</td></tr>" for n, v in facts.items())
        edge = f"border-left: 0.5em solid {GOOD if right else BAD}; padding-left: 0.6em"
        yield f'<div style="{edge}"><table class="dataframe">{rows}</table></div>'

