"""Accepted runs: a text that grows by runs of guesses that were right, with those that were not struck out.

What was guessed and fell is in no record; guesses from the text itself are found again, as `ngram` found them.

    >>> AcceptedRuns(trace, "a", piece)    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from labcore.core.config import SpeculativeConfig
from labcore.core.errors import InvalidTrace
from labcore.engine.trace_file import Trace
from labcore.widgets.replay import Replay, counted, joined

CAPTION = (
    "A step is a pass of the model; the text is as it stands after it, · is a space. Grey is the prompt. Guesses that stood are "
    "blue, the token that the model adds itself is orange, guesses that fell are struck out: they leave nothing behind. "
    "Underlined is where the guesses were found. Faint tokens came in earlier steps; click one to go there."
)


class Pass(NamedTuple):
    """A step of a request that brought tokens. found: where the guesses stood before, in the known tokens."""

    known: tuple[int, ...]
    guesses: tuple[int, ...]
    found: int
    accepted: int
    tokens: tuple[int, ...]


def passes(trace: Trace, name: str) -> list[Pass]:
    """Raises InvalidTrace: no such request, two of this name, or guesses that are not of the text."""
    prompts = {arrival.request_id: arrival.prompt for record in trace.steps for arrival in record.arrived}
    if name not in prompts:
        raise InvalidTrace(f"request {name!r} is not in the trace; known: {', '.join(map(repr, prompts))}")
    known, made = prompts[name], []
    for record in trace.steps:
        for share in record.scheduled:
            if share.request_id != name or not share.sampled:
                continue
            found = _found(known, trace.config.speculative) if share.num_draft else 0
            guesses = known[found : found + share.num_draft]
            accepted = min(share.num_accepted, len(share.sampled))  # a stop may end the answer inside of what was right
            told = len(guesses), guesses[:accepted], len(known) + len(share.sampled)
            if told != (share.num_draft, share.sampled[:accepted], share.num_tokens_known):
                raise InvalidTrace(f"step {record.step} of {name!r}: its guesses are not of the text; expected one run of ngram")
            made.append(Pass(known, guesses, found, accepted, share.sampled))
            known += share.sampled
    return made


def _found(known: tuple[int, ...], config: SpeculativeConfig) -> int:
    """Behind the last place of the longest run of tokens that ends the text; 0 where there is none."""
    for size in range(config.max_ngram, config.min_ngram - 1, -1):
        for end in range(len(known) - 1, size - 1, -1):
            if known[end - size : end] == known[-size:]:
                return end
    return 0


class AcceptedRuns(Replay):
    """The text of one request, pass by pass."""

    _esm = joined("player.js", "accepted_runs.js")
    _css = joined("replay.css", "accepted_runs.css")

    def __init__(self, trace: Trace, name: str, piece: Callable[[int], str], *, link: str = "runs") -> None:
        """piece: the text of a token. Raises InvalidTrace."""
        made = passes(trace, name)
        if not made:
            raise InvalidTrace(f"request {name!r} got no token; expected one or more")
        prompt = len(made[0].known)
        super().__init__(
            title=f"{counted(sum(len(one.tokens) for one in made), 'token')} in {counted(len(made), 'step')}", caption=CAPTION,
            link=link, first=1, step=None, says=[_says(one) for one in made],
            columns=["guesses", "right", "tokens", "tokens in all"],
            rows=[[len(p.guesses), p.accepted, len(p.tokens), len(p.known) + len(p.tokens) - prompt] for p in made],
            data={
                "prompt": [piece(token) for token in made[0].known],
                "steps": [
                    {
                        "pieces": [piece(token) for token in one.tokens], "accepted": one.accepted,
                        "fell": [piece(token) for token in one.guesses[one.accepted :]],
                        "found": [one.found, one.found + len(one.guesses)],
                    } for one in made
                ],
            },
        )  # fmt: skip


def _says(one: Pass) -> str:
    count, right, brought = len(one.guesses), one.accepted, counted(len(one.tokens), "token")
    if not count:
        return f"No guess: {brought}, as in plain decoding."
    guesses = "1 guess" if count == 1 else f"{count} guesses"
    if right == len(one.tokens):
        return f"{guesses}, and the answer ends inside of what is right: {brought} for one pass."
    judged = "all right" if right == count else f"{right} right, then one is wrong" if right else "the first is wrong"
    return f"{guesses}: {judged}. The model adds a token of its own: {brought} for one pass."
