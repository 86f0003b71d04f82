"""A live control: a prompt and three sliders; the answer comes anew, token by token, whenever one of them is moved.

It needs a kernel. In a page without one, a picture of it in HTML stands in its place, with the answer to the settings
that it was made with; so make it with settings whose answer is the same on every machine.

    >>> LiveGenerate(LLM("smollm2"), "The capital of France is")    # doctest: +SKIP
"""

from __future__ import annotations

import html
from threading import Lock
from typing import Any

import ipywidgets  # type: ignore[import-untyped]

from labcore.core.errors import LabError
from labcore.engine.llm import LLM
from labcore.engine.sampling_params import SamplingParams

GROUNDS = ("rgba(86, 180, 233, 0.30)", "rgba(230, 159, 0, 0.30)")  # neighbouring tokens differ


class LiveGenerate(ipywidgets.VBox):
    """Text and sliders in, an answer out, each token on its own ground."""

    def __init__(self, llm: LLM, prompt: str, *, max_tokens: int = 5, temperature: float = 0.0, seed: int = 0) -> None:
        self._llm = llm
        self._turn = Lock()  # JupyterLab may deliver the changes of two controls on two threads; an engine has one caller
        look = {"layout": ipywidgets.Layout(width="32em"), "style": {"description_width": "7em"}, "continuous_update": False}
        self.prompt = ipywidgets.Text(description="prompt", value=prompt, **look)
        self.temperature = ipywidgets.FloatSlider(description="temperature", value=temperature, min=0, max=2, step=0.1, **look)
        self.max_tokens = ipywidgets.IntSlider(description="max_tokens", value=max_tokens, min=1, max=32, **look)
        self.seed = ipywidgets.IntSlider(description="seed", value=seed, min=0, max=99, **look)
        self.answer = ipywidgets.HTML()
        self._controls = [self.prompt, self.temperature, self.max_tokens, self.seed]
        super().__init__([*self._controls, self.answer])
        self.generate()
        for control in self._controls:
            control.observe(self.generate, names="value")

    def generate(self, change: object = None) -> None:
        """Answer the present settings; another call waits until this one is done."""
        with self._turn:
            self._generate()

    def _generate(self) -> None:
        pieces: list[str] = []
        try:
            params = SamplingParams(max_tokens=self.max_tokens.value, temperature=self.temperature.value, seed=self.seed.value)
            for output in self._llm.stream(self.prompt.value, params):
                pieces.append(output.text)
                self.answer.value = _answer(self.prompt.value, pieces, output.finish_reason)
        except LabError as error:  # an empty prompt, say: the control shows it and goes on
            self.answer.value = f"<div>refused: {html.escape(str(error))}</div>"

    def __repr__(self) -> str:
        return "LiveGenerate()"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The control where there is a kernel to run it, its picture where there is none."""
        return {**super()._repr_mimebundle_(**kwargs), "text/html": self._picture()}

    def _picture(self) -> str:
        left, right = '<th style="text-align: right">', '<td style="text-align: left">'
        rows = (f"<tr>{left}{c.description}</th>{right}{html.escape(str(c.value))}</td></tr>" for c in self._controls)
        return f'<div class="lab-live"><table class="dataframe">{"".join(rows)}</table>{self.answer.value}</div>'


def _answer(prompt: str, pieces: list[str], finish_reason: str | None) -> str:
    chips = (
        f'<span style="background: {GROUNDS[i % 2]}; white-space: pre-wrap">{_visible(piece)}</span>'
        for i, piece in enumerate(pieces)
    )
    end = f", ended by: {finish_reason}" if finish_reason else " ..."
    return f"<div>{html.escape(prompt)}{''.join(chips)}</div><div><small>{len(pieces)} tokens{end}</small></div>"


def _visible(piece: str) -> str:
    return html.escape(piece).replace("\n", "⏎\n")
