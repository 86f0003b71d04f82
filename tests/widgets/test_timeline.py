"""The timeline shows what the records say, whatever the history, and is walked through in a page by mouse and keyboard."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from histories import History, crowded
from replay_pages import pages_of_replays

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.errors import InvalidTrace
from labcore.engine.trace_file import Trace
from labcore.widgets.timeline import Timeline

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    with pages_of_replays(tmp_path_factory.mktemp("pages")) as opened:
        yield opened


@pytest.mark.parametrize("cached", [False, True])
def test_the_cells_are_what_the_records_say(cached: bool) -> None:
    trace = crowded(cached).trace
    timeline = Timeline(trace)
    names, frames = timeline.data["names"], timeline.data["frames"]
    assert len(frames) == len(timeline.says) == len(timeline.rows) == len(trace.steps)
    for record, frame, row in zip(trace.steps, frames, timeline.rows, strict=True):
        runs = {names[r]: tokens for r, doing, tokens, _ in frame if doing in ("prompt", "decode", "again")}
        assert runs == {share.request_id: share.num_tokens for share in record.scheduled}
        ended = {names[r] for r, *_, note in frame if note not in ("", "preempted")}
        assert ended == set(record.finished)
        assert {names[r] for r, *_, note in frame if note == "preempted"} == set(record.preempted)
        assert row[0] == record.waiting and sum(row[1:4]) == row[4] == record.num_tokens


def test_the_words_of_a_step() -> None:
    says = Timeline(crowded().trace).says
    assert says[0] == "6 tokens: 6 of prompts (a). a arrives."
    assert says[2] == "6 tokens: 5 of prompts (b) and 1 of answers (a). b, c and d arrive. c and d wait."
    everything = " ".join(says)
    assert "computed again (" in everything and "is preempted." in everything and says[-1].endswith(" ends.")
    idle = History(CacheConfig(num_blocks=4, block_size=4), SchedulerConfig())
    idle.step()
    assert Timeline(idle.trace).says == ["Nothing runs: nothing to do."]


def test_a_request_that_is_given_up_ends_and_waits_no_more() -> None:
    history = History(CacheConfig(num_blocks=4, block_size=4), SchedulerConfig(max_num_seqs=1))
    history.add("a", 3, 5)
    history.add("b", 3, 5)
    history.step()
    history.scheduler.abort("b")
    history.step()
    timeline = Timeline(history.trace)
    assert [row[0] for row in timeline.rows] == [1, 0]
    assert timeline.data["frames"][1][1] == [1, "waits", 0, "abort"] and "b ends." in timeline.says[1]


def test_no_steps_are_no_timeline() -> None:
    with pytest.raises(InvalidTrace, match="has no steps"):
        Timeline(Trace(model="m", config=crowded().config, steps=()))


def test_a_cell_leads_to_its_step(shown: Callable[..., Any]) -> None:
    tab = shown(Timeline(crowded().trace))
    counter, says, current = (tab.locator(f".{name}") for name in ("replay-counter", "replay-says", "time-step.time-now"))
    tab.locator(".time-waits:not(.replay-legend *)").first.click()
    assert counter.inner_text().startswith("step 2 of ") and "wait." in says.inner_text()
    assert current.all_inner_texts() == ["2"]
    tab.keyboard.press("ArrowRight")
    assert current.all_inner_texts() == ["3"]
    tab.locator(".time-bar").nth(1).click()
    assert current.all_inner_texts() == ["1"]
    frame, bar = tab.locator(".time-cursor").bounding_box(), tab.locator(".time-bar").nth(1).bounding_box()
    assert abs(frame["x"] + frame["width"] / 2 - bar["x"] - bar["width"] / 2) < 2
    labels = tab.locator("button.time-cell").evaluate_all("cells => cells.map(cell => cell.ariaLabel)")
    assert "a, step 0: 6 of the prompt" in labels and any(label.endswith(", preempted") for label in labels)
    assert any(label.endswith("of the answer, length") for label in labels)
    tab.close()


def test_the_bars_are_as_tall_as_their_tokens(shown: Callable[..., Any]) -> None:
    timeline = Timeline(crowded().trace)
    tab = shown(timeline)
    heights = tab.locator(".time-fill").evaluate_all("fills => fills.map(fill => fill.offsetHeight)")
    tokens = [row[-1] for row in timeline.rows]
    assert [round(56 * count / max(tokens)) for count in tokens] == heights
    tab.close()


def test_a_telephone_shows_the_step_and_the_names(shown: Callable[..., Any]) -> None:
    tab = shown(Timeline(crowded().trace), viewport={"width": 360, "height": 900}, has_touch=True)
    tab.keyboard.press("Tab")
    tab.locator(".replay-bar").get_by_label("Last step").tap()
    area, cursor = tab.locator(".time-scroll").bounding_box(), tab.locator(".time-cursor").bounding_box()
    name = tab.locator(".time-name").first.bounding_box()
    assert area["x"] <= name["x"] and name["x"] + name["width"] <= cursor["x"] + 1
    assert cursor["x"] + cursor["width"] <= area["x"] + area["width"] + 2
    tab.locator(".replay-bar").get_by_label("First step").tap()
    cursor = tab.locator(".time-cursor").bounding_box()
    assert name["x"] + name["width"] <= cursor["x"] + 3
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.close()


def test_a_name_is_text(shown: Callable[..., Any]) -> None:
    history = History(CacheConfig(num_blocks=4, block_size=4), SchedulerConfig())
    history.add(HOSTILE, 3, 2)
    timeline = Timeline(history.drain().trace)
    assert html.escape(HOSTILE) in timeline._repr_mimebundle_()[0]["text/html"]
    tab = shown(timeline)
    assert tab.locator(".time-name[class*=colour]").inner_text() == HOSTILE
    tab.close()
