"""The live control of attention: each slider redraws, only positions are computed anew, and a picture stands for it."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from labcore.widgets.live_attention import LiveAttention

PIECES = ["<b>", " cat", "\n", " & dog"]
LAYERS, HEADS = 3, 4


class Attention:
    """Weights that tell where they come from: a head looks at one token only, the later the higher its number."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        self.asked.append(positions.tolist())
        weights = np.zeros((LAYERS, HEADS, len(PIECES), len(PIECES)))
        for query in range(len(PIECES)):
            for head in range(HEADS):
                weights[:, head, query, min(head, query)] = 1 if positions[1] - positions[0] == 1 else 0.25
        return weights


def live(attention: Attention | None = None) -> LiveAttention:
    return LiveAttention(PIECES, attention or Attention(), num_kv_heads=2, layer=1, head=3)


def percents(control: LiveAttention) -> list[int]:
    return [int(text) for text in re.findall(r">(\d+)%<", control.out.value)]


def test_each_slider_redraws() -> None:
    control = live()
    assert percents(control) == [0, 0, 0, 100] and "head 3 reads KV head 1" in control.out.value
    control.head.value = 1
    assert percents(control) == [0, 100, 0, 0] and "head 1 reads KV head 0" in control.out.value
    control.query.value = 1
    assert percents(control) == [0, 100]
    control.stretch.value = 2
    assert percents(control) == [0, 25]


def test_it_offers_what_there_is() -> None:
    control = live()
    assert (control.layer.max, control.head.max, control.query.max) == (LAYERS - 1, HEADS - 1, len(PIECES) - 1)
    assert (control.layer.value, control.head.value, control.query.value) == (1, 3, len(PIECES) - 1)


def test_only_positions_are_computed_anew() -> None:
    attention = Attention()
    control = live(attention)
    control.layer.value, control.head.value, control.query.value = 2, 0, 2
    assert attention.asked == [[0, 1, 2, 3]]
    control.shift.value = 10
    control.stretch.value = 3
    assert attention.asked[1:] == [[10, 11, 12, 13], [10, 13, 16, 19]]
    assert re.findall(r">(\d+)</td><th scope=row", control.out.value) == ["10", "13", "16"]


def test_changes_on_several_threads_take_turns() -> None:
    control = live()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(control.draw, range(20)))
    assert percents(control) == [0, 0, 0, 100]


def test_a_piece_is_text() -> None:
    value = live().out.value
    assert "&lt;b&gt;" in value and "<b>" not in value and "·&amp;·dog" in value and "⏎" in value


def test_it_has_a_picture_and_says_the_same_of_itself_always() -> None:
    control, other = live(), live()
    bundle = control._repr_mimebundle_()
    assert bundle["text/plain"] == repr(control) == repr(other) == "LiveAttention()"
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/html"] == other._repr_mimebundle_()["text/html"]
    assert 'class="lab-live"' in bundle["text/html"] and control.out.value in bundle["text/html"]
    assert all(name in bundle["text/html"] for name in ("layer", "head", "from position", "shift", "stretch"))
