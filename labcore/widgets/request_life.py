"""A request's life: its tokens, the blocks that hold them and its steps, from its arrival to its end.

>>> RequestLife(trace_of(llm.engine, records), "request-0")    # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

from labcore.core.errors import InvalidTrace
from labcore.engine.trace_file import Trace
from labcore.widgets.replay import Replay, counted, listed, span
from labcore.widgets.story import AGAIN, DECODE, KEEPS, PROMPT, WAITS, Moment, requests_of, story

CAPTION = (
    "A box is a token, below it its position. An empty box is known and not yet computed; a full one is computed in this step, "
    "a pale one was computed before; a dotted one is still unknown. A block holds the keys and values of its positions; its "
    "empty slots are reserved. The strip at the end shows all steps and leads to each of them."
)
GONE = {"abort": "is given up by its caller", "timeout": "is ended: its deadline has passed"}


class RequestLife(Replay):
    """One request of a trace. Steps are those of the engine, from the one it arrived before to the one it ended in."""

    def __init__(
        self, trace: Trace, request_id: str, *, link: str = "life", caption: str = CAPTION, step: int | None = None
    ) -> None:
        """Raises InvalidTrace: an empty trace, an unknown request. Of several requests of one name, the first is shown."""
        requests = requests_of(trace)
        names = [name for name, _ in requests]
        told = [(record, moments) for record, moments in story(trace)]
        if request_id not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise InvalidTrace(f"request {request_id!r} is not in the trace; known: {known}")
        own = names.index(request_id)
        life = [(record, moments[own]) for record, moments in told if own in moments]
        first, last = life[0][0].step, life[-1][1]
        tokens = list(requests[own][1].prompt) + [token for _, moment in life for token in moment.sampled]
        tables = list(dict.fromkeys(moment.blocks for _, moment in life))
        data = {
            "colour": own,
            "block_size": trace.config.cache.block_size,
            "num_prompt_tokens": last.num_prompt_tokens,
            "pieces": [trace.text(token) for token in tokens],
            "tables": tables,
            "frames": [_frame(moment, tables.index(moment.blocks)) for _, moment in life],
        }
        super().__init__(
            title=f"A request's life: {request_id}", caption=caption, link=link, first=first, step=step,
            says=[_says(names, trace, moment) for _, moment in life],
            columns=["does", "positions", "computed", "known", "blocks"],
            rows=[_row(moment) for _, moment in life], data=data,
        )  # fmt: skip


def _frame(moment: Moment, table: int) -> list[Any]:
    """What the view draws a step from; the two last only where they say something."""
    flags = "preempted" if moment.preempted else ""
    return [moment.doing, moment.start, moment.computed, moment.known, table, moment.ended or flags]


def _row(moment: Moment) -> list[Any]:
    runs = moment.computed > moment.start
    doing = {PROMPT: "prompt", DECODE: "answer", AGAIN: "again"}.get(moment.doing, moment.doing)
    return [
        doing, span(moment.start, moment.computed) if runs else "", moment.computed, moment.known,
        ", ".join(map(str, moment.blocks)),
    ]  # fmt: skip


def _says(names: list[str], trace: Trace, moment: Moment) -> str:
    """What happens to the request in this step."""
    name, said = names[moment.request], []
    if moment.arrived:
        said.append(f"{name} arrives with a prompt of {counted(moment.num_prompt_tokens, 'token')}.")
    if moment.preempted:
        said.append(f"{name} is preempted: it gives back its blocks, and what was computed will be computed again.")
    who = "It" if said else name
    if moment.ended in GONE:
        return " ".join([*said, f"{who} {GONE[moment.ended]}."])
    if moment.parted_from is not None:
        parent, sampled = names[moment.parted_from], listed([repr(trace.text(token)) for token in moment.sampled])
        end = f" It ends ({moment.ended})." if moment.ended else ""
        return f"{who} parts from {parent}, shares its {counted(len(moment.blocks), 'block')} and samples {sampled}.{end}"
    if moment.doing == WAITS:
        return " ".join([*said, f"{who} waits."])
    if moment.doing == KEEPS:
        return " ".join([*said, f"{who} keeps its blocks and computes nothing: the budget of this step goes to others."])
    did = [_computes(moment)]
    if moment.cached:
        did.insert(0, f"finds its first {counted(moment.cached, 'token')} in the prefix cache")
    if moment.taken:
        did.append(f"takes block{'' if len(moment.taken) == 1 else 's'} {listed(moment.taken)}")
    if moment.sampled:
        did.append(f"samples {listed([repr(trace.text(token)) for token in moment.sampled])}")
    said.append(f"{who} {listed(did)}.")
    if moment.ended:
        said.append(f"It ends ({moment.ended.replace('_', ' ')}) and gives back {counted(len(moment.blocks), 'block')}.")
    return " ".join(said)


def _computes(moment: Moment) -> str:
    num_tokens, left = moment.computed - moment.start, moment.num_prompt_tokens - moment.computed
    where = f"position{'' if num_tokens == 1 else 's'} {span(moment.start, moment.computed)}"
    if moment.doing == DECODE:
        return f"computes its newest token ({where})"
    if moment.doing == AGAIN:
        return f"computes {counted(num_tokens, 'token')} again ({where})"
    some = "token" if num_tokens == 1 else f"{num_tokens} tokens"
    if moment.start:
        which = f"the last {some}" if left <= 0 else counted(num_tokens, "more token")
    else:
        which = f"all {counted(num_tokens, 'token')}" if left <= 0 else f"the first {some}"
    return f"computes {which} of its prompt ({where})"
