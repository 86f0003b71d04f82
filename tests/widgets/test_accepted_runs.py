"""The replay of accepted runs shows what the records say, and finds again what was guessed; the live control counts the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from replay_pages import pages_of_replays

from labcore.core.config import CacheConfig, EngineConfig, SpeculativeConfig
from labcore.core.errors import InvalidTrace
from labcore.core.trace import StepRecord
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.speculative.draft_length import draft_length, expected_tokens, step_cost
from labcore.engine.speculative.ngram import Lookup
from labcore.engine.trace_file import Trace
from labcore.model.weights import load_model
from labcore.widgets.accepted_runs import AcceptedRuns, passes
from labcore.widgets.live_acceptance import MOST, LiveAcceptance

NGRAM = SpeculativeConfig(method="ngram", num_draft_tokens=4, adaptive=False, min_ngram=1)
SAID = "wxyz, 1234; QRST"
PROMPT = f"say {SAID} and again: "


def piece(token: int) -> str:
    return load_model("lab").tokenizer.token_bytes(token).decode(errors="replace")


def recorded(speculative: SpeculativeConfig = NGRAM, **rules: Any) -> Trace:
    """An answer that repeats its prompt, since nothing else is allowed; and a mate, of which nothing may be shown."""
    config = EngineConfig(cache=CacheConfig(block_size=4), speculative=speculative)
    records: list[StepRecord] = []
    engine = LLMEngine(load_model("lab"), config, records.append)
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=40, temperature=0.0, choices=(SAID,), **rules))
    engine.add_request("mate", "hello hello", SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True))
    while engine.has_unfinished:
        engine.step()
    return Trace(model="lab", config=config, steps=tuple(records))


def shares(trace: Trace, name: str = "a") -> list[Any]:
    return [share for record in trace.steps for share in record.scheduled if share.request_id == name and share.sampled]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return recorded()


@pytest.mark.parametrize("config", [NGRAM, replace(NGRAM, min_ngram=2, num_draft_tokens=7), replace(NGRAM, max_ngram=1)], ids=str)
def test_passes_are_what_the_records_say(config: SpeculativeConfig) -> None:
    trace = recorded(config)
    made, lookup = passes(trace, "a"), Lookup(config.min_ngram, config.max_ngram)
    assert [one.tokens for one in made] == [share.sampled for share in shares(trace)]
    for one, share in zip(made, shares(trace), strict=True):
        guesses = lookup.guess(list(one.known), share.num_draft) if share.num_draft else []
        assert list(one.guesses) == guesses and one.accepted == min(share.num_accepted, len(share.sampled))
        assert one.known[one.found : one.found + len(guesses)] == one.guesses
    assert sum(one.accepted for one in made) > 3 and any(one.accepted < len(one.guesses) for one in made)


def test_facts_and_words(trace: Trace) -> None:
    replay = AcceptedRuns(trace, "a", piece)
    text = "".join(one for step in replay.data["steps"] for one in step["pieces"])
    assert "".join(replay.data["prompt"]) == PROMPT and text == f"{SAID}<|eos|>"
    for step, row, says, share in zip(replay.data["steps"], replay.rows, replay.says, shares(trace), strict=True):
        assert row[:3] == [share.num_draft, step["accepted"], len(share.sampled)] and len(step["pieces"]) == len(share.sampled)
        assert len(step["fell"]) == share.num_draft - step["accepted"]
        assert f"{len(share.sampled)} token" in says and ("No guess" in says) == (share.num_draft == 0)
    assert replay.rows[-1][3] == sum(len(share.sampled) for share in shares(trace))
    assert repr(replay) == "AcceptedRuns()" and replay.title.endswith(f"in {len(replay.says)} steps")


def test_an_answer_that_ends_inside_of_what_is_right() -> None:
    tokens = [token for share in shares(recorded()) for token in share.sampled]
    found = []
    for stop in dict.fromkeys(tokens):
        trace = recorded(stop_token_ids=(stop,))
        replay = AcceptedRuns(trace, "a", piece)
        found += [says for says in replay.says if "ends inside" in says]
        said = [one for step in replay.data["steps"] for one in step["pieces"]]
        assert said == [piece(token) for token in tokens[: tokens.index(stop) + 1]]
    assert found


def test_what_cannot_be_shown_is_refused_by_name(trace: Trace) -> None:
    with pytest.raises(InvalidTrace, match="request 'z' is not in the trace; known: 'a', 'mate'"):
        AcceptedRuns(trace, "z", piece)
    nothing = Trace(model="lab", config=trace.config, steps=(trace.steps[0]._replace(scheduled=()),))
    with pytest.raises(InvalidTrace, match="request 'a' got no token"):
        AcceptedRuns(nothing, "a", piece)
    other = replace(trace.config, speculative=replace(NGRAM, max_ngram=9, min_ngram=9))
    with pytest.raises(InvalidTrace, match="its guesses are not of the text"):
        AcceptedRuns(Trace(model="lab", config=other, steps=trace.steps), "a", piece)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    with pages_of_replays(tmp_path_factory.mktemp("pages")) as opened:
        yield opened


def test_it_is_walked_through_in_a_page(shown: Callable[..., Any], trace: Trace) -> None:
    replay = AcceptedRuns(trace, "a", piece)
    fallen = next(i for i, step in enumerate(replay.data["steps"]) if step["fell"])
    for scheme, width in (("light", 900), ("dark", 360)):
        tab = shown(replay, color_scheme=scheme, viewport={"width": width, "height": 900})
        steps = tab.locator(".runs-step")
        assert steps.count() == len(replay.says)
        for at in range(len(replay.says)):
            if at:
                tab.get_by_label("Forward (Right)").click()
            visible = [i for i in range(steps.count()) if steps.nth(i).is_visible()]
            assert visible == list(range(at + 1))
            step = replay.data["steps"][at]
            assert tab.locator(".runs-step .runs-fell:visible").count() == len(step["fell"])
            assert tab.locator(".runs-now .runs-guess").count() == step["accepted"]
            assert tab.locator(".runs-found").count() == step["found"][1] - step["found"][0]
            assert tab.locator(".replay-says").inner_text() == replay.says[at]
        steps.nth(fallen).locator(".runs-piece:not(.runs-fell)").first.click()
        assert tab.locator(".replay-counter").inner_text() == f"step {fallen + 1} of {len(replay.says)}"
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.close()


@pytest.mark.parametrize(("acceptance", "guesses", "running", "cost"), [(0.8, 4, 1, 0.0), (0.0, 0, 64, 1.0), (1.0, 12, 7, 0.25)])
def test_what_the_live_control_says_is_counted(acceptance: float, guesses: int, running: int, cost: float) -> None:
    control = LiveAcceptance()
    control.acceptance.value, control.guesses.value = acceptance, guesses
    control.running.value, control.draft_cost.value = running, cost
    gain = expected_tokens(acceptance, guesses) * step_cost(0, running) / step_cost(guesses, running, cost)
    best = draft_length(acceptance, MOST, running, cost)
    shown = control.out.value
    assert f"<b>{expected_tokens(acceptance, guesses):.2f} tokens</b>" in shown and f"<b>{gain:.2f} times</b>" in shown
    assert f"The best number is <b>{best}</b>" in shown and len(re.findall("<rect", shown)) == MOST + 1


def test_the_live_control_has_a_picture_and_says_the_same_of_itself_always() -> None:
    control, other = LiveAcceptance(), LiveAcceptance()
    bundle = control._repr_mimebundle_()
    assert bundle["text/plain"] == repr(other) and 'class="lab-live"' in bundle["text/html"]
    assert bundle["text/html"] == other._repr_mimebundle_()["text/html"]
