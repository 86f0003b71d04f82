"""A live control: a text and a choice of tokenizer; the tokens come as chips, each with its id, while the text is typed.

It needs a kernel. In a page without one, a picture of it in HTML stands in its place, with the tokens of the text that it
was made with.

    >>> LiveTokens({"smollm2": tokenizer}, "Zürich 2026 🚀")    # doctest: +SKIP
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from threading import Lock
from typing import Any

import ipywidgets  # type: ignore[import-untyped]

from labcore.core.errors import LabError
from labcore.loaders.tokenizer import Tokenizer

GROUNDS = ("rgba(86, 180, 233, 0.30)", "rgba(230, 159, 0, 0.30)")  # neighbouring tokens differ
CHIP = "display: inline-block; text-align: center; white-space: pre; margin: 1px; padding: 0 3px; border-radius: 3px"


class LiveTokens(ipywidgets.VBox):
    """A chip says a token's text, or its bytes where they are no whole characters, and below it the id."""

    def __init__(self, tokenizers: Mapping[str, Tokenizer], text: str) -> None:
        """tokenizers: by the name under which each is offered; the first is chosen."""
        self._tokenizers = dict(tokenizers)
        self._turn = Lock()  # JupyterLab may deliver the changes of two controls on two threads
        look = {"layout": ipywidgets.Layout(width="32em"), "style": {"description_width": "7em"}}
        self.text = ipywidgets.Text(description="text", value=text, **look)
        self.tokenizer = ipywidgets.Dropdown(description="tokenizer", options=list(self._tokenizers), **look)
        self.tokens = ipywidgets.HTML()
        self._controls = [self.text, self.tokenizer]
        super().__init__([*self._controls, self.tokens])
        self.tokenize()
        for control in self._controls:
            control.observe(self.tokenize, names="value")

    def tokenize(self, change: object = None) -> None:
        """Show the present text; another call waits until this one is done."""
        with self._turn:
            try:
                self.tokens.value = _tokens(self._tokenizers[self.tokenizer.value], self.text.value)
            except LabError as error:  # text that is not Unicode, say: the control shows it and goes on
                self.tokens.value = f"<div>refused: {html.escape(str(error))}</div>"

    def __repr__(self) -> str:
        return "LiveTokens()"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The control where there is a kernel to run it, its picture where there is none."""
        return {**super()._repr_mimebundle_(**kwargs), "text/html": self._picture()}

    def _picture(self) -> str:
        left, right = '<th style="text-align: right">', '<td style="text-align: left">'
        rows = (f"<tr>{left}{c.description}</th>{right}{html.escape(c.value)}</td></tr>" for c in self._controls)
        return f'<div class="lab-live"><table class="dataframe">{"".join(rows)}</table>{self.tokens.value}</div>'


def _tokens(tokenizer: Tokenizer, text: str) -> str:
    ids = tokenizer.encode(text)
    num_broken, chips = 0, []
    for i, token_id in enumerate(ids):
        data = tokenizer.token_bytes(token_id)
        try:
            said = html.escape(data.decode()).replace(" ", "·").replace("\n", "⏎")
        except UnicodeDecodeError:
            num_broken += 1
            said = f"<code>{data.hex(' ')}</code>"
        edge = "; outline: 1px dashed" if tokenizer.is_special(token_id) else ""
        chips.append(f'<span style="{CHIP}; background: {GROUNDS[i % 2]}{edge}">{said}<br><small>{token_id}</small></span>')
    counts = (
        f"tokens: {len(ids)}, of these no whole characters: {num_broken}; characters: {len(text)}; bytes: {len(text.encode())}"
    )
    return f"<div>{' '.join(chips)}</div><div><small>{counts}</small></div>"
