"""A table that a notebook shows: HTML in JupyterLab and in the page, aligned text everywhere else.

>>> Table(["request", "tokens"], [["a", 5], ["b", 12]])
request  tokens
a             5
b            12
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

NUMBER = re.compile(r"(-?[\d,.]+%?)?")


class Table:
    """Rows under headers. Columns of numbers stand on the right, others on the left; whole numbers get thousands commas."""

    def __init__(self, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self.headers = list(headers)
        self._cells = [[_text(value) for value in row] for row in rows]
        columns = zip(*self._cells, strict=True) if self._cells else ([""] for _ in self.headers)
        self._right = [all(NUMBER.fullmatch(cell) for cell in column) for column in columns]

    def __repr__(self) -> str:
        lines = [self.headers, *self._cells]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headers))]
        return "\n".join("  ".join(self._pad(i, cell, widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines)

    def _pad(self, column: int, cell: str, width: int) -> str:
        return cell.rjust(width) if self._right[column] else cell.ljust(width)

    def _repr_html_(self) -> str:
        def line(cells: list[str], tag: str) -> str:
            sides = ("right" if right else "left" for right in self._right)
            styled = (f'<{tag} style="text-align: {side}">{html.escape(c)}</{tag}>' for c, side in zip(cells, sides, strict=True))
            return f"<tr>{''.join(styled)}</tr>"

        body = "\n".join(line(cells, "td") for cells in self._cells)
        return f'<table class="dataframe">\n<thead>\n{line(self.headers, "th")}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table>'


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
