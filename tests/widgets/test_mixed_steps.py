"""Mixed steps: shares and budget are those of the records, and the columns stand under the line as tall as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from histories import History, crowded
from replay_pages import pages_of_replays

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.errors import InvalidTrace
from labcore.engine.trace_file import Trace
from labcore.widgets.mixed_steps import MixedSteps


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    with pages_of_replays(tmp_path_factory.mktemp("pages")) as opened:
        yield opened


def mixed(budget: int = 12) -> MixedSteps:
    """Two run, then a prompt of 20 comes, in chunks of 8."""
    limits = SchedulerConfig(max_num_batched_tokens=budget, max_chunk_tokens=8)
    history = History(CacheConfig(num_blocks=32, block_size=4), limits)
    history.add("a", 3, 9)
    history.add("b", 2, 9)
    history.step()
    history.add("long", 20, 2)
    return MixedSteps(history.drain().trace)


@pytest.mark.parametrize("cached", [False, True])
def test_the_shares_are_those_of_the_records(cached: bool) -> None:
    trace = crowded(cached).trace
    steps = MixedSteps(trace)
    budget = trace.config.scheduler.max_num_batched_tokens
    for record, frame, row in zip(trace.steps, steps.data["frames"], steps.rows, strict=True):
        told = {steps.data["names"][request]: tokens for request, _, tokens in frame}
        assert told == {share.request_id: share.num_tokens for share in record.scheduled}
        assert row[3:] == [record.num_tokens, budget - record.num_tokens] and sum(row[:3]) == record.num_tokens
        assert row[4] >= 0
    again = [says for says, row in zip(steps.says, steps.rows, strict=True) if row[2]]
    assert again and all(", again." in says for says in again)


def test_the_words_of_a_step() -> None:
    says = mixed().says
    assert says[0] == "3 tokens of a's prompt, to its end. 2 tokens of b's prompt, to its end. a and b get a token."
    assert says[1] == "8 tokens of long's prompt, 12 are left. a and b get a token."
    assert says[3] == "4 tokens of long's prompt, to its end. a, b and long get a token."
    idle = History(CacheConfig(num_blocks=4, block_size=4), SchedulerConfig())
    idle.step()
    assert MixedSteps(idle.trace).says == ["Nothing runs: nothing to do."]
    with pytest.raises(InvalidTrace, match="has no steps"):
        MixedSteps(Trace(model="m", config=idle.config, steps=()))


def test_the_columns_stand_under_the_budget(shown: Callable[..., Any]) -> None:
    steps = mixed(budget=10)
    tab = shown(steps)
    line, stacks = tab.locator(".mixed-budget").bounding_box(), tab.locator(".mixed-stack")
    tops = [stacks.nth(i).bounding_box() for i in range(len(steps.rows))]
    for box, row in zip(tops, steps.rows, strict=True):
        assert box["height"] == pytest.approx(14 * row[3], abs=2 + len(row))
        assert box["y"] >= line["y"] - 1
    full = tops[[row[3] for row in steps.rows].index(10)]
    assert abs(full["y"] - line["y"]) < 3  # a step that spends all touches the line
    tab.close()


def test_a_column_is_chosen_and_its_shares_are_told(shown: Callable[..., Any]) -> None:
    tab = shown(mixed())
    chosen = tab.locator(".mixed-list > span")
    tab.locator(".mixed-bar").nth(1).click()
    assert tab.locator(".replay-counter").inner_text().startswith("step 1 of ")
    told = ["a 1 of the answer", "b 1 of the answer", "long 8 of the prompt", "2 left of the budget"]
    assert [" ".join(text.split()) for text in chosen.all_inner_texts()] == told
    a, b, long, rest = tab.locator(".mixed-shares .mixed-part").evaluate_all("parts => parts.map(part => part.offsetWidth)")
    assert a == b and long == pytest.approx(8 * a, rel=0.1) and rest == pytest.approx(2 * a, rel=0.1)
    tab.keyboard.press("End")
    assert tab.locator(".mixed-now").count() == 1 and "10 left of the budget" in chosen.all_inner_texts()[-1]
    tab.close()


def test_a_budget_far_above_all_is_told_and_not_drawn(shown: Callable[..., Any]) -> None:
    tab = shown(mixed(budget=512))
    assert tab.locator(".mixed-budget").count() == 0 and "512 tokens" in tab.locator(".replay-legend").first.inner_text()
    assert tab.locator(".mixed-stack").nth(1).bounding_box()["height"] == pytest.approx(140, abs=4)
    tab.close()


def test_a_telephone(shown: Callable[..., Any]) -> None:
    tab = shown(mixed(), viewport={"width": 360, "height": 900})
    tab.get_by_label("Last step").click()
    area, bar = tab.locator(".mixed-scroll").bounding_box(), tab.locator(".mixed-now").bounding_box()
    assert area["x"] <= bar["x"] and bar["x"] + bar["width"] <= area["x"] + area["width"] + 2
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.close()
