"""The timeline of a run: a column a step, a row a request, and under them the tokens of each step.

>>> Timeline(Trace(model="oracle", config=EngineConfig(), steps=tuple(records)))    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from labcore.core.trace import StepRecord
from labcore.engine.trace_file import Trace
from labcore.widgets.replay import Replay, counted, listed
from labcore.widgets.story import AGAIN, DECODE, PROMPT, WAITS, Moment, names_of, story

KINDS = {PROMPT: "of prompts", DECODE: "of answers", AGAIN: "computed again"}
CAPTION = (
    "A column is a step, a row is a request. A full cell computes tokens of its prompt, a pale one a token of its answer, a "
    "hatched one computes again what was lost; the number says how many. A dashed cell waits, × was preempted, a thick right "
    "edge ends. The bars are the tokens of each step. The frame is the step that is told above; click a cell to go there."
)


def tokens_of(moments: Iterable[Moment]) -> dict[str, int]:
    """Tokens that a step computed, by what they are: of prompts, of answers, again."""
    tokens = dict.fromkeys(KINDS, 0)
    for moment in moments:
        if moment.doing in tokens:
            tokens[moment.doing] += moment.computed - moment.start
    return tokens


class Timeline(Replay):
    """Who waits, computes, is computed again and ends, in every step of a trace."""

    def __init__(self, trace: Trace, *, link: str = "timeline", caption: str = CAPTION, step: int | None = None) -> None:
        """Raises InvalidTrace: an empty trace."""
        names, frames, says, rows = names_of(trace), [], [], []
        for record, moments in story(trace):
            frames.append([[r, m.doing, m.computed - m.start, _note(m)] for r, m in moments.items()])
            says.append(_says(names, record, moments))
            tokens, waiting = tokens_of(moments.values()), [m for m in moments.values() if m.doing == WAITS and not m.ended]
            rows.append([len(waiting), *tokens.values(), sum(tokens.values())])
        super().__init__(
            title=f"{counted(len(names), 'request')} in {counted(len(says), 'step')}", caption=caption, link=link,
            first=trace.steps[0].step, step=step, says=says,
            columns=["wait", "prompt tokens", "answer tokens", "computed again", "tokens"], rows=rows,
            data={"names": names, "frames": frames},
        )  # fmt: skip


def _note(moment: Moment) -> str:
    return moment.ended or ("preempted" if moment.preempted else "")


def _says(names: list[str], record: StepRecord, moments: Mapping[int, Moment]) -> str:
    """What happens in this step, all requests together."""
    who = {doing: [names[r] for r, m in moments.items() if m.doing == doing] for doing in (*KINDS, WAITS)}
    tokens = tokens_of(moments.values())
    did = [f"{tokens[doing]} {kind} ({', '.join(who[doing])})" for doing, kind in KINDS.items() if tokens[doing]]
    said = [f"{counted(sum(tokens.values()), 'token')}: {listed(did)}." if did else f"Nothing runs: {record.idle_reason}."]
    for words, found in {
        "{} arrive{s}.": [names[r] for r, m in moments.items() if m.arrived],
        "{} {is} preempted.": [names[r] for r, m in moments.items() if m.preempted],
        "{} wait{s}.": [names[r] for r, m in moments.items() if m.doing == WAITS and not m.ended and not m.preempted],
        "{} end{s}.": [names[r] for r, m in moments.items() if m.ended],
    }.items():
        if found:
            one = len(found) == 1
            said.append(words.format(listed(found), s="s" if one else "", **{"is": "is" if one else "are"}))
    return " ".join(said)
