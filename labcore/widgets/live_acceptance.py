"""What guesses bring: tokens a pass, speed-up and the best number of them, for an acceptance and costs that the reader chooses.

>>> LiveAcceptance()    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator

from ipywidgets import FloatSlider, IntSlider  # type: ignore[import-untyped]

from labcore.engine.speculative.draft_length import draft_length, expected_tokens, step_cost
from labcore.widgets.live import Live, setting

MOST, UNIT, HIGH, BASE = 12, 36, 110, 16  # BASE: pixels below the bars, for the numbers
WIDTH = (MOST + 1) * UNIT
OTHER, CHOSEN, BEST = "#56b4e9", "#0072b2", "#e69f00"


class LiveAcceptance(Live):
    """A bar a number of guesses, as tall as its speed-up over plain decoding; the line is 1, no gain."""

    def __init__(self) -> None:
        self.acceptance = setting(FloatSlider, "acceptance", 0.8, min=0.0, max=1.0, step=0.05)
        self.guesses = setting(IntSlider, "guesses", 4, min=0, max=MOST)
        self.running = setting(IntSlider, "running", 1, min=1, max=64)
        self.draft_cost = setting(FloatSlider, "draft cost", 0.0, min=0.0, max=1.0, step=0.05)
        super().__init__([self.acceptance, self.guesses, self.running, self.draft_cost])

    def speed_up(self, num_draft: int) -> float:
        """Tokens for the cost of a pass, over those of plain decoding. A draft model keeps up even where it guesses nothing."""
        running = self.running.value
        cost = step_cost(num_draft, running, self.draft_cost.value) / step_cost(0, running)
        return expected_tokens(self.acceptance.value, num_draft) / cost

    def shown(self) -> Iterator[str]:
        chosen, gains = self.guesses.value, [self.speed_up(k) for k in range(MOST + 1)]
        best = draft_length(self.acceptance.value, MOST, self.running.value, self.draft_cost.value)
        tokens = expected_tokens(self.acceptance.value, chosen)
        scale, bars = HIGH / max(*gains, 1.0), []
        for k, gain in enumerate(gains):
            x, colour = k * UNIT, CHOSEN if k == chosen else BEST if k == best else OTHER
            box = f'x="{x + 3}" width="{UNIT - 6}" y="{HIGH - gain * scale:.1f}" height="{gain * scale:.1f}"'
            place = f'x="{x + UNIT / 2}" y="{HIGH + BASE - 3}" text-anchor="middle" font-size="11" fill="currentColor"'
            bars.append(f'<rect {box} fill="{colour}"/><text {place}>{k}</text>')
        label = "speed-up by the number of guesses; dark blue: the chosen number, orange: the best; the line: no gain"
        look = f'viewBox="0 0 {WIDTH} {HIGH + BASE}" role="img" aria-label="{label}" style="width: 100%; max-width: {WIDTH}px"'
        line = f'<path d="M0 {HIGH - scale:.1f}H{WIDTH}" stroke="currentColor" stroke-dasharray="4 3"/>'
        yield (
            f"<div>With {chosen} guesses a pass brings <b>{tokens:.2f} tokens</b>: <b>{gains[chosen]:.2f} times</b> the speed of "
            f"plain decoding. The best number is <b>{best}</b>: {gains[best]:.2f} times.</div>"
            f"<div><small>{label}</small></div><div><svg {look}>{''.join(bars)}{line}</svg></div>"
        )
