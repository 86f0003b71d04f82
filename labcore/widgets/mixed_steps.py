"""Mixed steps: of each step its tokens, prompts and answers on top of each other, under the line of the budget.

>>> MixedSteps(Trace(model="oracle", config=EngineConfig(), steps=tuple(records)))    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping

from labcore.core.trace import StepRecord
from labcore.engine.trace_file import Trace
from labcore.widgets.replay import Replay, counted, listed
from labcore.widgets.story import AGAIN, PROMPT, Moment, names_of, story
from labcore.widgets.timeline import KINDS, tokens_of

CAPTION = (
    "A column is a step, as tall as the tokens that it computes. A colour is a request: full are tokens of its prompt, pale "
    "with a border are tokens of its answer, hatched are tokens computed again. The line is the budget of a step. Below, the "
    "step that is chosen: who has which share, and what is left of the budget. Click a column to choose it."
)


class MixedSteps(Replay):
    """The shares of every step of a trace."""

    def __init__(self, trace: Trace, *, link: str = "mixed", caption: str = CAPTION, step: int | None = None) -> None:
        """Raises InvalidTrace: an empty trace."""
        names, budget = names_of(trace), trace.config.scheduler.max_num_batched_tokens
        frames, says, rows = [], [], []
        for record, moments in story(trace):
            frames.append([[r, m.doing, m.computed - m.start] for r, m in moments.items() if m.doing in KINDS])
            says.append(_says(names, record, moments))
            tokens = tokens_of(moments.values())
            rows.append([*tokens.values(), sum(tokens.values()), budget - sum(tokens.values())])
        super().__init__(
            title=f"{counted(len(says), 'step')} with a budget of {counted(budget, 'token')}", caption=caption, link=link,
            first=trace.steps[0].step, step=step, says=says,
            columns=["prompt tokens", "answer tokens", "computed again", "tokens", "left of the budget"], rows=rows,
            data={"names": names, "budget": budget, "frames": frames},
        )  # fmt: skip


def _says(names: list[str], record: StepRecord, moments: Mapping[int, Moment]) -> str:
    """Whose prompt moves how far, and who gets a token."""
    said = []
    for r, m in moments.items():
        tokens, rest = counted(m.computed - m.start, "token"), m.num_prompt_tokens - m.computed
        if m.doing == PROMPT:
            said.append(f"{tokens} of {names[r]}'s prompt, {'to its end' if rest <= 0 else f'{rest} are left'}.")
        if m.doing == AGAIN:
            said.append(f"{tokens} of {names[r]}, again.")
    if told := [names[r] for r, m in moments.items() if m.sampled]:
        said.append(f"{listed(told)} {'gets' if len(told) == 1 else 'get'} a token.")
    return " ".join(said) or f"Nothing runs: {record.idle_reason}."
