"""What all replays share: a recorded run as a small table of facts, and a player in the browser that walks through it.

A replay carries its behaviour with it, so it works in JupyterLab and in a page with no kernel. Python works out the facts
and the words once; JavaScript draws and walks. A kind of replay is a class in a module here, and a view in the .js and the
.css file of the module's name: `timeline.py`, `timeline.js`, `timeline.css`.

`_esm` is one ES module, player.js and the view behind it. The player defines `player(view)`, and the view ends in
`export default player(...)`. There is no build step.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from labcore.core.errors import InvalidConfig

HERE = Path(__file__).parent
LINK = re.compile(r"[a-z][a-z0-9-]*")


def joined(*names: str) -> str:
    """Files of this folder, each under a line with its name: where a page can cut them apart, to keep each only once."""
    return "".join(f"/*! {name} */\n{(HERE / name).read_text(encoding='utf-8')}" for name in names)


class Replay(anywidget.AnyWidget):
    """A title, a sentence and a row of facts for each step, and what the view draws them from.

    first:   number of the first step; `step` is the one that is shown, and follows the reader.
    link:    the replay's name in the address of a page: `page.html#life=12` opens step 12. Unique in a page.
    caption: how to read it.
    """

    title = traitlets.Unicode().tag(sync=True)
    caption = traitlets.Unicode().tag(sync=True)
    unit = traitlets.Unicode("step").tag(sync=True)
    link = traitlets.Unicode().tag(sync=True)
    first = traitlets.Int().tag(sync=True)
    step = traitlets.Int().tag(sync=True)
    says = traitlets.List(traitlets.Unicode()).tag(sync=True)
    columns = traitlets.List(traitlets.Unicode()).tag(sync=True)
    rows = traitlets.List(traitlets.List()).tag(sync=True)
    data = traitlets.Dict().tag(sync=True)

    def __init_subclass__(cls, **more: Any) -> None:
        name = cls.__module__.rpartition(".")[2]
        if "_esm" not in vars(cls) and (HERE / f"{name}.js").is_file():  # anywidget makes a subclass that has its own
            cls._esm, cls._css = joined("player.js", f"{name}.js"), joined("replay.css", f"{name}.css")
        super().__init_subclass__(**more)

    def __init__(self, *, link: str, step: int | None, first: int, says: Sequence[str], **facts: Any) -> None:
        if not LINK.fullmatch(link):
            raise InvalidConfig(f"link is {link!r}; expected a lower-case name such as 'life-2': letters, digits, hyphens")
        super().__init__(link=link, first=first, says=list(says), step=first if step is None else step, **facts)

    @traitlets.validate("step")
    def _within(self, proposal: dict[str, Any]) -> int:
        return int(min(max(proposal["value"], self.first), self.first + len(self.says) - 1))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The replay, and for whoever cannot run it the table: there `pytest --nbval` sees what the replay shows."""
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "text/html": table(self.get_state())}, metadata


def table(state: dict[str, Any]) -> str:
    """The text equivalent of a replay, from its state."""

    left = ' style="text-align: left"'  # JupyterLab would set it to the right

    def line(scope: str, cells: Sequence[object]) -> str:
        first, *others = (html.escape(str(cell)) for cell in cells)
        rest = (f"<td{left}>{cell}</td>" if scope == "row" else f'<th scope="col"{left}>{cell}</th>' for cell in others)
        return f'<tr><th scope="{scope}"{left}>{first}</th>{"".join(rest)}</tr>'

    head = line("col", [state["unit"], *state["columns"], "what happens"])
    facts = enumerate(zip(state["rows"], state["says"], strict=True), state["first"])
    body = "\n".join(line("row", [step, *row, says]) for step, (row, says) in facts)
    caption = html.escape(state["title"])
    return (
        f'<table class="dataframe lab-replay">\n<caption>{caption}</caption>\n'
        f"<thead>\n{head}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )


def listed(things: Sequence[object]) -> str:
    """a, b and c."""
    words = [str(thing) for thing in things]
    return " and ".join([*filter(None, [", ".join(words[:-1])]), *words[-1:]])


def counted(number: int, noun: str) -> str:
    """1 block, 2 blocks."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def span(start: int, end: int) -> str:
    """Positions start to end - 1."""
    return str(start) if end - start == 1 else f"{start} to {end - 1}"
