"""A prompt and three sliders; the answer comes anew, token by token, each on its own ground.

>>> LiveGenerate(LLM("smollm2"), "The capital of France is")    # doctest: +SKIP
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from ipywidgets import FloatSlider, IntSlider, Text  # type: ignore[import-untyped]

from labcore.engine.llm import LLM
from labcore.engine.sampling_params import SamplingParams
from labcore.widgets.live import GROUNDS, Live, setting


class LiveGenerate(Live):
    """Text and sliders in, an answer out."""

    def __init__(self, llm: LLM, prompt: str, *, max_tokens: int = 5, temperature: float = 0.0, seed: int = 0) -> None:
        self._llm = llm
        self.prompt = setting(Text, "prompt", prompt, continuous_update=False)
        self.temperature = setting(FloatSlider, "temperature", temperature, min=0, max=2, step=0.1)
        self.max_tokens = setting(IntSlider, "max_tokens", max_tokens, min=1, max=32)
        self.seed = setting(IntSlider, "seed", seed, min=0, max=99)
        super().__init__([self.prompt, self.temperature, self.max_tokens, self.seed])

    def shown(self) -> Iterator[str]:
        params = SamplingParams(max_tokens=self.max_tokens.value, temperature=self.temperature.value, seed=self.seed.value)
        pieces: list[str] = []
        for output in self._llm.stream(self.prompt.value, params):
            pieces.append(output.text)
            yield _answer(self.prompt.value, pieces, output.finish_reason)


def _answer(prompt: str, pieces: list[str], finish_reason: str | None) -> str:
    chips = (
        f'<span style="background: {GROUNDS[i % 2]}; white-space: pre-wrap">{_readable(piece)}</span>'
        for i, piece in enumerate(pieces)
    )
    end = f", ended by: {finish_reason}" if finish_reason else " ..."
    return f"<div>{html.escape(prompt)}{''.join(chips)}</div><div><small>{len(pieces)} tokens{end}</small></div>"


def _readable(piece: str) -> str:
    return html.escape(piece).replace("\n", "⏎\n")
