"""What all live controls share: settings that a kernel answers anew whenever one of them changes.

It needs a kernel. In a page without one, a picture of it in HTML stands in its place, with the answer to the settings
that it was made with; so make it with settings whose answer is the same on every machine.

    >>> class Squares(Live):
    ...     def __init__(self) -> None:
    ...         self.number = setting(ipywidgets.IntSlider, "number", 3, max=9)
    ...         super().__init__([self.number])
    ...     def shown(self) -> Iterator[str]:
    ...         yield f"<div>{self.number.value ** 2}</div>"
    >>> Squares().out.value
    '<div>9</div>'
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

import ipywidgets  # type: ignore[import-untyped]

from labcore.core.errors import LabError

GROUNDS = ("rgba(86, 180, 233, 0.30)", "rgba(230, 159, 0, 0.30)")  # neighbouring tokens differ


def setting(kind: type, name: str, value: object, **more: Any) -> Any:
    """A control of this kind, as all of them look; a slider answers when it is let go."""
    if issubclass(kind, ipywidgets.IntSlider | ipywidgets.FloatSlider):
        more["continuous_update"] = False
    look = {"layout": ipywidgets.Layout(width="32em"), "style": {"description_width": "7em"}}
    return kind(description=name, value=value, **look, **more)


def visible(piece: str) -> str:
    """A piece of text as HTML in which spaces and line ends can be seen."""
    return html.escape(piece).replace(" ", "·").replace("\n", "⏎")


class Live(ipywidgets.VBox):
    """Settings, and below them what `shown` makes of their present values."""

    def __init__(self, settings: Sequence[Any]) -> None:
        self._settings = settings
        self._turn = Lock()  # JupyterLab may deliver the changes of two controls on two threads; an engine has one caller
        self.out = ipywidgets.HTML()
        super().__init__([*settings, self.out])
        self.draw()
        for control in settings:
            control.observe(self.draw, names="value")

    def shown(self) -> Iterator[str]:
        """HTML for the present settings; each that comes takes the place of the one before."""
        raise NotImplementedError

    def draw(self, change: object = None) -> None:
        """Show the present settings; another call waits until this one is done."""
        with self._turn:
            try:
                for shown in self.shown():
                    self.out.value = shown
            except LabError as error:  # an empty prompt, say: the control shows it and goes on
                self.out.value = f"<div>refused: {html.escape(str(error))}</div>"

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The control where there is a kernel to run it, its picture where there is none."""
        return {**super()._repr_mimebundle_(**kwargs), "text/html": self._picture()}

    def _picture(self) -> str:
        left, right = '<th style="text-align: right">', '<td style="text-align: left">'
        rows = (f"<tr>{left}{c.description}</th>{right}{html.escape(str(c.value))}</td></tr>" for c in self._settings)
        return f'<div class="lab-live"><table class="dataframe">{"".join(rows)}</table>{self.out.value}</div>'
