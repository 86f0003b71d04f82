"""The live control: it answers when it is moved, shows a refusal and goes on, and has a picture where there is no kernel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from labcore.engine.llm import LLM
from labcore.widgets.live_generate import LiveGenerate


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("lab")


def test_moving_a_control_answers_anew(llm: LLM) -> None:
    live = LiveGenerate(llm, "hello", max_tokens=3)
    assert "3 tokens, ended by:" in live.out.value
    live.max_tokens.value = 4
    assert "4 tokens, ended by:" in live.out.value
    before = live.out.value
    live.prompt.value = "good morning"
    assert "good morning" in live.out.value != before


def test_a_seed_matters_when_sampled_and_gives_the_same_again(llm: LLM) -> None:
    live = LiveGenerate(llm, "hello", max_tokens=12, temperature=1.5)
    first = live.out.value
    live.seed.value = 7
    assert live.out.value != first
    live.seed.value = 0
    assert live.out.value == first


def test_a_refusal_is_shown_and_the_next_prompt_runs(llm: LLM) -> None:
    live = LiveGenerate(llm, "hello", max_tokens=2)
    live.prompt.value = ""
    assert "refused: " in live.out.value and "the prompt is empty" in live.out.value
    live.prompt.value = "hello"
    assert "2 tokens" in live.out.value
    assert not llm.engine.has_unfinished


def test_changes_on_several_threads_take_turns() -> None:
    live = LiveGenerate(LLM("lab"), "hello", max_tokens=24)
    expected = live.out.value
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(live.draw, range(12)))
    assert live.out.value == expected


def test_what_a_model_or_a_reader_writes_is_text(llm: LLM) -> None:
    live = LiveGenerate(llm, "<b>bold</b> & <script>", max_tokens=1)
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; &lt;script&gt;" in live.out.value and "<script" not in live.out.value


def test_it_has_a_picture_and_says_the_same_of_itself_always(llm: LLM) -> None:
    live, other = (LiveGenerate(llm, "hello", max_tokens=2) for _ in range(2))
    bundle = live._repr_mimebundle_()
    assert bundle["text/plain"] == repr(live) == repr(other) == "LiveGenerate()"
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/html"] == other._repr_mimebundle_()["text/html"]
    assert 'class="lab-live"' in bundle["text/html"] and live.out.value in bundle["text/html"]
