"""A long prompt that arrives among running requests: what the chunk does to its first token and to their next one.

>>> LiveChunk(fixed=14)    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator

from ipywidgets import IntSlider  # type: ignore[import-untyped]

from labcore.core.config import SchedulerConfig
from labcore.widgets.live import Live, setting
from labcore.widgets.live_arrivals import Arrival, serve

WIDTH, HIGH, ARRIVES = 480, 46, 4
PROMPT, ANSWER = "#56b4e9", "#e69f00"


class LiveChunk(Live):
    """A step costs `fixed` tokens' worth of time and its tokens besides: a model, and the unit of all numbers shown."""

    def __init__(self, fixed: int) -> None:
        self._fixed = fixed
        self.chunk = setting(IntSlider, "chunk", 32, min=1, max=256)
        self.prompt = setting(IntSlider, "long prompt", 256, min=16, max=512, step=16)
        self.running = setting(IntSlider, "running", 4, min=1, max=16)
        super().__init__([self.chunk, self.prompt, self.running])

    def shown(self) -> Iterator[str]:
        """A box a step, as wide as it lasts; at its end every running request has its next token."""
        chunk, prompt, running = self.chunk.value, self.prompt.value, self.running.value
        limits = SchedulerConfig(max_num_batched_tokens=1024, max_chunk_tokens=chunk, max_num_seqs=running + 1)
        steps = -(-prompt // chunk)
        others = [Arrival(0, 1, ARRIVES + steps + 4)] * running  # they run to the end of the picture
        records = serve([*others, Arrival(ARRIVES, prompt, 1)], limits)
        costs = [self._fixed + record.num_tokens for record in records]
        first = sum(costs[ARRIVES : ARRIVES + steps])
        unit, x, boxes = WIDTH / sum(costs), 0.0, []
        for record, cost in zip(records, costs, strict=True):
            long = any(share.request_id == str(running) for share in record.scheduled)
            width = max(cost * unit - 1, 0.5)
            boxes.append(f'<rect x="{x:.1f}" y="4" width="{width:.1f}" height="{HIGH - 8}" fill="{PROMPT if long else ANSWER}"/>')
            x += cost * unit
        label = "a box a step, as wide as it lasts; blue ones compute a chunk of the long prompt"
        look = f'viewBox="0 0 {WIDTH} {HIGH}" role="img" aria-label="{label}" style="width: 100%; max-width: {WIDTH}px"'
        yield (
            f"<div>The long prompt takes {steps:,} steps; its first token comes after <b>{first:,}</b>. The worst gap between "
            f"two tokens of the others is <b>{max(costs):,}</b>, the usual one {costs[1]:,}. (In the time of a token.)</div>"
            f"<div><small>{label}</small></div><div><svg {look}>{''.join(boxes)}</svg></div>"
        )
