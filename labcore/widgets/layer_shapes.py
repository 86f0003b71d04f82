"""Shapes through a layer: the operators of a forward pass, one at a time, each with what goes in, what it reads, what comes out.

>>> LayerShapes(record_operators(model, token_ids))    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labcore.core.errors import InvalidTrace
from labcore.core.operators import OperatorRecord, Shape
from labcore.widgets.replay import Replay, counted

CAPTION = (
    "A rectangle is an array: rows run downward, columns to the right, and a pile is an array of more axes; a pile shows four "
    "sheets at most. Sides grow with the logarithm of the size, so a side that is a little longer is a much longer axis. Blue is "
    "what goes in, grey is a weight or the KV pool, orange is what comes out. The boxes above are the operators in their order; "
    "choose one to go there."
)
SAYS = {
    "embedding": "Each token id picks its row of the embedding: numbers become vectors.",
    "input norm": "Each vector is brought to one size, channel by channel weighted. The vector itself goes on as the residual.",
    "q": "Queries: what each token asks, for all heads at once.",
    "k": "Keys: what each token is found by. There are fewer KV heads than heads: several queries share one.",
    "v": "Values: what each token has to say.",
    "q norm": "Each head's query is brought to one size.",
    "k norm": "Each head's key is brought to one size.",
    "rope q": "Queries are turned by an angle that grows with their position.",
    "rope k": "Keys are turned in the same way: a product of the two then depends on their distance alone.",
    "store": "The new keys and values are written into the pool, each into the slot of its position.",
    "attention": "Each query meets the keys of all positions up to its own: the better one fits, the more of its value is taken.",
    "o": "What the heads have gathered is mixed back into one vector for each token.",
    "add + norm": "It is added to the residual, and the sum is brought to one size for the second half of the layer.",
    "add + input norm": "It is added to the residual, and the sum is brought to one size for the next layer.",
    "gate": "Up to a wider vector: the half that opens and shuts.",
    "up": "Up to a wider vector once more: the half that is let through.",
    "silu x up": "One half gates the other, number by number.",
    "down": "Back down to the width of the residual: this is what the layer has to add.",
    "last row": "Only the row of the last token goes on: only there something is still open.",
    "last row of the residual": "The residual is cut to the same row.",
    "add + final norm": "The last layer's result is added to the residual, and the sum is brought to one size.",
    "head": "One score for each piece of the vocabulary: the logits.",
}


class LayerShapes(Replay):
    """The first layer operator by operator, the others as one stop."""

    def __init__(
        self, records: Sequence[OperatorRecord], *, link: str = "shapes", caption: str = CAPTION, step: int | None = None
    ) -> None:
        """records: of `labcore.lab.operators.record_operators`. Raises InvalidTrace if there are none."""
        if not records:
            raise InvalidTrace("there are no operators to show; record some with record_operators(model, token_ids)")
        layers = {record.layer for record in records if record.layer is not None}
        others = [record for record in records if record.layer]
        shown = [record for record in records if not record.layer]
        stops = [_stop(record) for record in shown]
        says = [SAYS.get(record.name, f"{record.operator}.") for record in shown]
        if others:
            at = 1 + max(i for i, record in enumerate(shown) if record.layer == 0)
            stops.insert(at, _rest(len(layers), others))
            says.insert(at, "Every further layer does the same with weights of its own; its input norm adds the residual first.")
        super().__init__(
            title="Shapes through a layer", unit="operator", caption=caption, link=link, first=1, step=step, says=says,
            columns=["name", "in", "weight", "out", "bytes of weights", "bytes of KV", "FLOPs"],
            rows=[_row(stop) for stop in stops], data={"stops": stops},
        )  # fmt: skip


def _stop(record: OperatorRecord) -> dict[str, Any]:
    """What the view draws, where it is not empty."""
    part = "layer 0" if record.layer == 0 else "before" if record.name == "embedding" else "after"
    numbers = {"weight_bytes": record.weight_bytes, "kv_bytes": record.kv_bytes, "flops": record.flops}
    shapes = {"in": record.inputs, "weight": [record.weight] if record.weight else [], "out": record.outputs}
    return {"name": record.name, "operator": record.operator, "part": part, **{k: v for k, v in (shapes | numbers).items() if v}}


def _rest(num_layers: int, others: Sequence[OperatorRecord]) -> dict[str, Any]:
    name = counted(num_layers - 1, "more layer")
    totals = {key: sum(getattr(record, key) for record in others) for key in ("weight_bytes", "kv_bytes", "flops")}
    return {"name": name, "operator": "", "part": "after", "rest": True, **totals}


def _row(stop: dict[str, Any]) -> list[str]:
    numbers = [f"{stop.get(key, 0):,}" for key in ("weight_bytes", "kv_bytes", "flops")]
    return [stop["name"], *("; ".join(map(_text, stop.get(key, []))) for key in ("in", "weight", "out")), *numbers]


def _text(shape: Shape) -> str:
    return " × ".join(f"{axis} {length:,}" for axis, length in shape)
