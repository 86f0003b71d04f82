"""The live control of text: it follows what is typed, names the bytes of what is no character, and has a picture."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from labcore.loaders.load import load_checkpoint
from labcore.loaders.tokenizer import LabTokenizer, Tokenizer
from labcore.widgets.live_tokens import LiveTokens


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {"smollm2": load_checkpoint("smollm2").tokenizer, "lab": LabTokenizer()}


def chips(live: LiveTokens) -> list[str]:
    """The chips."""
    return re.findall("<span [^>]*(>.*?)</span>", live.out.value)


def test_typing_and_choosing_show_the_tokens_anew(tokenizers: dict[str, Tokenizer]) -> None:
    live = LiveTokens(tokenizers, "the")
    assert len(chips(live)) == 1 and "tokens: 1, of these no whole characters: 0; characters: 3; bytes: 3" in live.out.value
    assert "the two colours only tell neighbours apart" in live.out.value
    live.text.value = "the the"
    assert len(chips(live)) == 2 and "·the" in live.out.value
    live.tokenizer.value = "lab"
    assert len(chips(live)) == len(LabTokenizer().encode("the the"))


def test_what_is_no_whole_character_is_shown_as_bytes(tokenizers: dict[str, Tokenizer]) -> None:
    live = LiveTokens({"lab": tokenizers["lab"]}, "é!")
    assert live.out.value.count("<code>") == 2 and "<code>c3</code>" in live.out.value
    assert "tokens: 3, of these no whole characters: 2; characters: 2; bytes: 3" in live.out.value


def test_special_tokens_are_marked_and_markup_is_text(tokenizers: dict[str, Tokenizer]) -> None:
    live = LiveTokens(tokenizers, "<|im_end|>")
    assert "&lt;|im_end|&gt;" in live.out.value and "dashed" in live.out.value
    live.text.value = "<script>&"
    assert "<script" not in live.out.value and "&amp;" in live.out.value and "dashed" not in live.out.value


def test_a_refusal_is_shown_and_an_empty_text_has_no_tokens(tokenizers: dict[str, Tokenizer]) -> None:
    live = LiveTokens(tokenizers, "a\ud83d")
    assert "refused: the text is not Unicode" in live.out.value
    live.text.value = ""
    assert "tokens: 0, of these no whole characters: 0; characters: 0; bytes: 0" in live.out.value


def test_changes_on_several_threads_take_turns(tokenizers: dict[str, Tokenizer]) -> None:
    live = LiveTokens(tokenizers, "to be, or not to be")
    expected = live.out.value
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(live.draw, range(12)))
    assert live.out.value == expected


def test_it_has_a_picture_and_says_the_same_of_itself_always(tokenizers: dict[str, Tokenizer]) -> None:
    live, other = (LiveTokens(tokenizers, "<b>") for _ in range(2))
    bundle = live._repr_mimebundle_()
    assert bundle["text/plain"] == repr(live) == repr(other) == "LiveTokens()"
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/html"] == other._repr_mimebundle_()["text/html"]
    assert (
        'class="lab-live"' in bundle["text/html"] and live.out.value in bundle["text/html"] and "<b>" not in bundle["text/html"]
    )
