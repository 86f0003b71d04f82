"""The way of one token from logits: the law after each rule, what the rule dropped, and where the random number falls.

>>> Filters(rows, token_ids, prompt, params, piece=tokenizer.decode)    # rows (vocab_size,) each    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from labcore.engine.philox import uniform
from labcore.engine.sampler import Context, probabilities
from labcore.engine.sampling_params import SamplingParams
from labcore.widgets.replay import Replay, counted, joined

RULES = {  # in the order in which they apply: the fields of each
    "penalties": ("repetition_penalty", "presence_penalty", "frequency_penalty"), "bias": ("logit_bias",),
    "allowed": ("allowed_token_ids",), "temperature": ("temperature",), "top-k": ("top_k",), "top-p": ("top_p",),
    "min-p": ("min_p",),
}  # fmt: skip
CAPTION = (
    "A line is a token; the most probable of the model come first. The outline is its probability before the rule, the bar "
    "after it; × was dropped. The longest outline or bar of a place is as wide as there is room. Below, the tokens that stayed "
    "share the way from 0 to 1, in the order of their ids; the arrow is the random number. Click a token of the answer, or a "
    "rule; up and down go to the token before and behind."
)


def stages(params: SamplingParams) -> list[tuple[str, SamplingParams]]:
    """The model's own law, and then one rule more each time; rules that change nothing are left out."""
    found = [("the model", SamplingParams())]
    for name, fields in RULES.items():
        after = replace(found[-1][1], **{own: getattr(params, own) for own in fields})
        if after != found[-1][1]:
            found.append((name, after))
    return found


def entropy(law: np.ndarray) -> float:
    """In bits."""
    mass = law[law > 0]
    return float(-(mass * np.log2(mass)).sum()) + 0.0


class Filters(Replay):
    """A step is a place of an answer and a rule; the last step of each place draws the token."""

    _esm = joined("player.js", "filters.js")
    _css = joined("replay.css", "filters.css")

    def __init__(
        self, rows: Sequence[np.ndarray], token_ids: Sequence[int], prompt: Sequence[int], params: SamplingParams, *,
        piece: Callable[[list[int]], str], num_shown: int = 12, link: str = "filters", step: int | None = None,
    ) -> None:  # fmt: skip
        """rows: the logits that each token of an answer was chosen from. params: with the seed it was chosen with."""
        names = [name for name, _ in stages(params)]
        places, says, facts = [], [], []
        for i, (row, token) in enumerate(zip(rows, token_ids, strict=True)):
            context, position = Context(prompt, token_ids[:i]), len(prompt) + i
            laws = [probabilities(row, so_far, context) for _, so_far in stages(params)]
            u = 0.0 if params.greedy else uniform(params.seed or 0, 0, position)
            shown = np.argsort(-laws[0], kind="stable")[:num_shown].tolist()
            label = piece([int(token)])
            for name, before, law in zip(names, [laws[0], *laws], laws, strict=False):
                says.append(_says(name.capitalize() + _value(params, name), before, law))
            says.append(f"The random number {u:.3f} falls on {label!r}: that is the token.")
            facts += [_facts(label, name, law) for name, law in [*zip(names, laws, strict=True), ("draw", laws[-1])]]
            places.append({
                "label": label, "chosen": shown.index(token) if token in shown else num_shown, "u": round(u, 4),
                "labels": [piece([own]) for own in shown], "spans": _spans(laws[-1], shown),
                "laws": [[*law[shown].round(4).tolist(), round(max(0.0, 1 - law[shown].sum()), 4)] for law in laws],
                "kept": [[bool(law[own] > 0) for own in shown] for law in laws],
                "others": [int(np.count_nonzero(law) - np.count_nonzero(law[shown])) for law in laws],
            })  # fmt: skip
        super().__init__(
            title=f"From logits to {counted(len(places), 'token')}", caption=CAPTION, link=link, first=1, step=step, says=says,
            columns=["token", "rule", "tokens left", "entropy, bits", "most probable"], rows=facts,
            data={"rules": [*names, "draw"], "places": places},
        )  # fmt: skip


def _value(params: SamplingParams, name: str) -> str:
    """The rule's number, where it has one."""
    fields = RULES.get(name, ())
    return f" {getattr(params, fields[0])}" if len(fields) == 1 and name not in ("bias", "allowed") else ""


def _facts(label: str, name: str, law: np.ndarray) -> list[Any]:
    return [label, name, f"{np.count_nonzero(law):,}", f"{entropy(law):.2f}", f"{law.max():.1%}"]


def _says(rule: str, before: np.ndarray, law: np.ndarray) -> str:
    """What a rule did to the law: whom it dropped, or how the mass has moved."""
    left, dropped = int(np.count_nonzero(law)), int(np.count_nonzero((before > 0) & (law == 0)))
    if before is law:
        return f"The model's own law: {counted(left, 'token')}, the most probable has {law.max():.1%}."
    if dropped:
        stays = f"{counted(left, 'token')} {'stays' if left == 1 else 'stay'}"
        return f"{rule}: {stays}, {dropped:,} dropped; they had {before[law == 0].sum():.1%} of the mass."
    moved = np.abs(law - before).sum() / 2
    if moved < 1e-9:
        return f"{rule}: nothing changes here."
    return f"{rule}: nobody is dropped; {moved:.1%} of the mass has moved to other tokens."


def _spans(law: np.ndarray, shown: list[int]) -> list[list[float]]:
    """[from, to, place among the shown or -1] of each token that is left, by id; neighbours that are not shown are one."""
    spans: list[list[float]] = []
    ends = np.cumsum(law)
    for token in np.flatnonzero(law).tolist():
        place = shown.index(token) if token in shown else -1
        if spans and place == spans[-1][2] == -1:
            spans[-1][1] = round(float(ends[token]), 4)
        else:
            spans.append([spans[-1][1] if spans else 0.0, round(float(ends[token]), 4), place])
    return spans
