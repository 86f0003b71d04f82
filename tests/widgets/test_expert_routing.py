"""The routing replay draws what was recorded and tells it by mouse and keyboard; the live control says what the formula says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from replay_pages import pages_of_replays

from labcore.core.errors import InvalidConfig
from labcore.model.expert_load import Routing, expected_experts
from labcore.widgets.expert_routing import ExpertRouting
from labcore.widgets.live_experts import BATCHES, NUMBERS, LiveExperts

HOSTILE = "<img src=x onerror=alert(1)>"


def routing() -> Routing:
    """Two layers, four tokens, 2 of 10 experts; in the second layer expert 9 has all of them."""
    ids = np.array([[[0, 1], [1, 2], [8, 0], [3, 1]], [[9, 0], [9, 1], [2, 9], [9, 8]]])
    return Routing(expert_ids=ids, weights=np.tile([0.754, 0.246], (2, 4, 1)), num_experts=10)


def replay() -> ExpertRouting:
    return ExpertRouting(routing(), ["a", " b", HOSTILE, "\n"])


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    with pages_of_replays(tmp_path_factory.mktemp("experts")) as opened:
        yield opened


def test_the_rows_and_words_are_what_was_recorded() -> None:
    made = replay()
    assert made.rows == [[5, 1, 3, 0, "3.75"], [5, 9, 4, 0, "5.00"]]
    assert made.says[0] == "Expert 1 has 3 of 8 places, 3.8 times the mean; nobody goes to 4, 5, 6, 7 and 9."
    assert made.title == "2 of 10 experts for each of 4 tokens" and (made.first, made.unit) == (0, "layer")
    assert made.data["experts"] == routing().expert_ids.tolist() and made.data["percent"][0][0] == [75, 25]
    full = ExpertRouting(Routing(expert_ids=np.array([[[0], [1], [1]]]), weights=np.ones((1, 3, 1)), num_experts=2), "abc")
    assert full.says == ["Expert 1 has 2 of 3 places, 1.3 times the mean; the emptiest has 1."]
    with pytest.raises(InvalidConfig, match="3 pieces for 4 tokens"):
        ExpertRouting(routing(), "abc")


def test_a_token_and_an_expert_tell_their_way(shown: Callable[..., Any]) -> None:
    tab = shown(replay())
    tokens, bars, chosen = tab.locator(".moe-token"), tab.locator(".moe-bar"), tab.locator(".moe-chosen")
    assert tokens.nth(1).inner_text().split() == ["·b", "1", "2"] and tab.locator(".replay img").count() == 0
    assert bars.locator("small").all_inner_texts() == ["2", "3", "1", "1", "0", "0", "0", "0", "1", "0"]
    assert [c for c in tokens.nth(2).get_attribute("class").split() if "colour" in c] == ["replay-colour-0"]  # the ninth expert
    tokens.nth(1).click()
    assert chosen.inner_text() == "“·b” goes to layer 0: 1 (75%) and 2 (25%); layer 1: 9 (75%) and 1 (25%)."
    assert chosen.locator("b").inner_text().startswith("layer 0") and tab.locator(".moe-bar.moe-far").count() == 8
    tab.get_by_label("Forward").click()
    assert chosen.locator("b").inner_text().startswith("layer 1")
    bars.nth(9).click()
    assert chosen.inner_text().startswith("Expert 9 has 4 of 4 tokens in layer 1: a ·b <img")
    assert tab.locator(".moe-token.moe-far").count() == 0
    tab.get_by_label("Back").click()
    assert chosen.inner_text() == "Expert 9 has 0 of 4 tokens in layer 0: none." and tab.locator(".moe-far").count() == 4
    bars.nth(9).click()
    assert chosen.inner_text().startswith("Choose a token or an expert")
    tab.close()


def test_the_keyboard_goes_from_token_to_token(shown: Callable[..., Any]) -> None:
    tab = shown(replay())
    tab.locator(".moe-token").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        tab.keyboard.press(key)
    assert tab.locator(".moe-chosen").inner_text().startswith("“·b” goes to")
    assert tab.locator(".moe-token[tabindex='0']").count() == tab.locator(".moe-bar[tabindex='0']").count() == 1
    tab.keyboard.press("ArrowRight")
    assert tab.locator(".replay-counter").inner_text() == "layer 1 of 1"
    assert tab.evaluate("document.activeElement.classList.contains('moe-token')")
    tab.close()


def test_bars_are_as_long_as_their_tokens_and_fit_a_telephone(shown: Callable[..., Any]) -> None:
    for width in (1280, 360):
        tab = shown(replay(), viewport={"width": width, "height": 800})
        tab.get_by_label("Last").click()
        tab.wait_for_timeout(300)  # bars grow smoothly
        wide = [round(bar.bounding_box()["width"]) for bar in tab.locator(".moe-fill").all()]
        assert wide[9] == max(wide) and wide[9] > 3 * wide[1] > 0
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.close()


def test_the_live_control_says_what_the_formula_says() -> None:
    live = LiveExperts()
    assert "25.0% of their weights are active; a batch of 8 touches 7.2 (90%), 2.2 tokens for each" in live.out.value
    live.experts.value, live.chosen.value, live.batch.value = 128, 8, 32
    assert f"touches {expected_experts(128, 8, 32):.1f} (87%)" in live.out.value
    live.experts.value = 4  # more are chosen than there are: all of them
    assert "4 of 4 experts a token: 100.0%" in live.out.value
    for experts in NUMBERS:
        for batch in BATCHES:
            live.experts.value, live.batch.value = experts, batch
            assert live.out.value.count("<rect") == len(BATCHES) and "refused" not in live.out.value
    assert repr(live) == "LiveExperts()" and live._repr_mimebundle_()["text/html"].startswith('<div class="lab-live">')
