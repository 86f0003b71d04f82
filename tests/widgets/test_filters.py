"""The replay of a token's rules shows the sampler's own laws and ends at its token; the live row answers as the sampler does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from replay_pages import pages_of_replays

from labcore.engine.sampler import Context, probabilities, sample
from labcore.engine.sampling_params import SamplingParams
from labcore.widgets.filters import RULES, Filters, entropy, stages
from labcore.widgets.live_filters import LiveFilters

HOSTILE = "<img src=x onerror=alert(1)>"
PROMPT = [3, 4]
PARAMS = SamplingParams(
    temperature=0.7, top_k=6, top_p=0.8, min_p=0.05, presence_penalty=0.5, repetition_penalty=1.3, logit_bias={5: 2.0}, seed=11
)
ROWS = 2 * np.random.default_rng(2).standard_normal((4, 40)).astype(np.float32)


def piece(ids: list[int]) -> str:
    return HOSTILE if ids == [5] else f" t{ids[0]}"


def answer(params: SamplingParams) -> list[int]:
    tokens: list[int] = []
    for i, row in enumerate(ROWS):
        context = Context(prompt=PROMPT, output=tokens)
        tokens.append(sample(row, params, seed=params.seed or 0, position=len(PROMPT) + i, context=context))
    return tokens


def replay(params: SamplingParams = PARAMS, **more: Any) -> Filters:
    return Filters(ROWS, answer(params), PROMPT, params, piece=piece, **more)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    with pages_of_replays(tmp_path_factory.mktemp("pages")) as opened:
        yield opened


def test_every_rule_of_the_sampler_is_a_stage_and_the_last_has_them_all() -> None:
    fields = {name for own in RULES.values() for name in own}
    laws = {name for name in SamplingParams.__dataclass_fields__ if name not in fields}
    assert not laws & {"temperature", "top_k", "top_p", "min_p", "logit_bias", "allowed_token_ids"}
    assert all(getattr(stages(PARAMS)[-1][1], name) == getattr(PARAMS, name) for name in fields)
    assert [name for name, _ in stages(SamplingParams(top_p=0.5, temperature=0.0))] == ["the model", "temperature", "top-p"]


@pytest.mark.parametrize("num_shown", [3, 12, 40])
def test_the_last_bars_are_the_samplers_law_and_the_number_falls_on_its_token(num_shown: int) -> None:
    filters, tokens = replay(num_shown=num_shown), answer(PARAMS)
    steps = len(filters.data["rules"])
    assert len(filters.says) == len(filters.rows) == 4 * steps
    for i, (row, token, place) in enumerate(zip(ROWS, tokens, filters.data["places"], strict=True)):
        law = probabilities(row, PARAMS, Context(prompt=PROMPT, output=tokens[:i]))
        order = np.argsort(-probabilities(row, SamplingParams()), kind="stable")[:num_shown].tolist()
        assert np.allclose(place["laws"][-1][:-1], law[order], atol=6e-5)
        assert all(abs(sum(masses) - 1) < 1e-3 for masses in place["laws"])
        assert place["kept"][-1] == [bool(law[t] > 0) for t in order]
        assert sum(place["kept"][-1]) + place["others"][-1] == np.count_nonzero(law)
        assert place["chosen"] == (order.index(token) if token in order else num_shown)
        [hit] = [span for span in place["spans"] if span[0] <= place["u"] < span[1]]
        assert hit[2] == (place["chosen"] if token in order else -1)
        assert filters.rows[(i + 1) * steps - 1][:3] == [piece([token]), "draw", f"{np.count_nonzero(law):,}"]


def test_the_words_of_a_step() -> None:
    says = replay().says
    assert says[0].startswith("The model's own law: 40 tokens, the most probable has ")
    assert says[1].startswith("Penalties: nobody is dropped; ") and says[2].startswith("Bias: nobody is dropped; ")
    assert says[4].startswith("Top-k 6: 6 tokens stay, 34 dropped; they had ")
    assert says[7].startswith("The random number 0.") and says[7].endswith("that is the token.")
    everything = replay(SamplingParams(min_p=0.0, top_k=40, top_p=0.999, seed=1)).says
    assert "Top-k 40: nothing changes here." in everything
    greedy = replay(SamplingParams(temperature=0.0))
    assert "1 token stays, 39 dropped" in greedy.says[1] and greedy.rows[1][2:] == ["1", "0.00", "100.0%"]


def test_entropy_is_in_bits() -> None:
    assert entropy(np.full(8, 0.125)) == 3 and entropy(np.array([0.0, 1.0])) == 0


def test_tokens_rules_and_keys_lead_to_their_steps(shown: Callable[..., Any]) -> None:
    filters = replay()
    tab, steps = shown(filters), len(filters.data["rules"])
    counter, says = tab.locator(".replay-counter"), tab.locator(".replay-says")
    chips = tab.locator(".replay-row").nth(0).locator(".filter-chip")
    chips.nth(2).click()
    assert counter.inner_text() == f"step {2 * steps + 1} of {4 * steps}"
    tab.locator(".filter-chip", has_text="top-k").click()
    assert says.inner_text() == filters.says[2 * steps + filters.data["rules"].index("top-k")]
    gone = tab.locator(".filter-gone")
    kept = filters.data["places"][2]["kept"][filters.data["rules"].index("top-k")]
    assert gone.count() == kept.count(False) + (filters.data["places"][2]["others"][4] == 0)
    assert set(gone.locator("small").all_inner_texts()) == {"×"}
    tab.keyboard.press("ArrowUp")
    assert counter.inner_text() == f"step {steps + 5} of {4 * steps}"
    for _ in range(9):
        tab.keyboard.press("ArrowDown")
    assert counter.inner_text() == f"step {3 * steps + 5} of {4 * steps}"
    assert tab.locator(".filter-strip").evaluate("e => e.style.visibility") == "hidden"
    tab.keyboard.press("End")
    assert tab.locator(".filter-hit").count() == 1 == tab.locator(".filter-chosen").count()
    hit, arrow = tab.locator(".filter-hit").bounding_box(), tab.locator(".filter-spans").bounding_box()
    place = filters.data["places"][3]
    assert hit["x"] - 1 <= arrow["x"] + place["u"] * arrow["width"] <= hit["x"] + hit["width"] + 1
    tab.close()


def test_the_bars_are_as_wide_as_the_mass(shown: Callable[..., Any]) -> None:
    filters = replay()
    tab, place = shown(filters), filters.data["places"][0]
    tab.keyboard.press("Tab")
    tab.keyboard.press("ArrowRight")
    widest = max(mass for masses in place["laws"] for mass in masses)
    track = tab.locator(".filter-track").first.bounding_box()["width"]
    for kind, stage in (("before", 0), ("after", 1)):
        widths = tab.locator(f".filter-{kind}").evaluate_all("bars => bars.map(bar => bar.getBoundingClientRect().width)")
        assert np.allclose(widths, [max(1, track * mass / widest) for mass in place["laws"][stage]], atol=1.1)
    tab.close()


def test_a_telephone_shows_all_of_it(shown: Callable[..., Any]) -> None:
    tab = shown(replay(step=8), viewport={"width": 360, "height": 900}, color_scheme="dark")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert HOSTILE.replace(" ", "·") in tab.locator(".filter-lines").inner_text()
    tab.close()


def live() -> LiveFilters:
    return LiveFilters(ROWS[0], piece)


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.0), ("temperature", 2.0), ("top_k", 3), ("top_p", 0.5), ("min_p", 0.2)]
)
def test_each_slider_asks_the_sampler(name: str, value: float) -> None:
    control = live()
    getattr(control, name).value = value
    params = SamplingParams(**{n: getattr(control, n).value for n in ("temperature", "top_k", "top_p", "min_p")})
    law, own = probabilities(ROWS[0], params), probabilities(ROWS[0], SamplingParams())
    text = re.sub(r"<[^>]+>", " ", control.out.value)
    assert f"{np.count_nonzero(law)} of 40 tokens left; entropy {entropy(law):.2f} bits, of the model {entropy(own):.2f}" in text
    assert f"total variation from the model's law {np.abs(law - own).sum() / 2:.3f}" in text
    order = np.argsort(-own, kind="stable")[:12]
    assert re.findall(r"(\d+\.\d%|×)<", control.out.value) == [f"{law[t]:.1%}" if law[t] else "×" for t in order]


def test_a_live_row_has_a_picture_and_says_the_same_of_itself_always() -> None:
    control = live()
    bundle = control._repr_mimebundle_()
    assert bundle["text/plain"] == repr(control) == "LiveFilters()"
    assert control.out.value in bundle["text/html"] and "top_p" in bundle["text/html"]
    assert "<img" not in bundle["text/html"]
