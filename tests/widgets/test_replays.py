"""What the replays say of a trace is what its records and the scheduler's own books say, whatever the history."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from histories import History, crowded
from hypothesis import given
from hypothesis import strategies as st

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.errors import InvalidConfig, InvalidRequest, InvalidTrace
from labcore.core.trace import StepRecord
from labcore.engine.trace_file import Trace
from labcore.lab import pictures
from labcore.lab.operators import record_operators
from labcore.model.weights import load_model
from labcore.widgets import replay
from labcore.widgets.block_pool import BlockPool
from labcore.widgets.layer_shapes import SAYS, LayerShapes
from labcore.widgets.replay import Replay, joined
from labcore.widgets.request_life import RequestLife
from labcore.widgets.story import WAITS, names_of, story

WIDGETS = Path(replay.__file__).parent


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 12), st.integers(1, 8)),
        st.tuples(st.sampled_from(["give up", "leave"]), st.integers(0, 7), st.just(0)),
        st.just(("step", 0, 0)),
    ),
    max_size=30,
)


@given(
    actions=actions, cached=st.booleans(), block_size=st.sampled_from([1, 2, 4]), num_blocks=st.integers(2, 12),
    budget=st.integers(1, 16), seqs=st.integers(1, 4), chunk=st.sampled_from([None, 1, 3]),
)  # fmt: skip
def test_the_story_is_what_the_schedulers_books_say(
    actions: list[Any], cached: bool, block_size: int, num_blocks: int, budget: int, seqs: int, chunk: int | None
) -> None:
    """Any history: names used again, aborts between and within steps, preemption, shared blocks."""
    limits = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seqs, max_chunk_tokens=chunk)
    history = History(CacheConfig(num_blocks=num_blocks, block_size=block_size), limits, cached)
    for action, x, y in actions:
        free = [name for name in "abcd" if name not in history.alive]
        if action == "add" and free:
            with contextlib.suppress(InvalidRequest):
                history.add(free[0], x, min(y, max(num_blocks * block_size - x, 1)))
        elif action == "give up" and history.alive:
            history.scheduler.abort(history.alive[x % len(history.alive)])
        elif action == "leave" and history.alive:
            history.step(history.alive[x % len(history.alive)])
        elif action == "step":
            history.step()
    history.step()
    for _ in range(200):
        if not history.scheduler.has_unfinished:
            break
        history.step()
    check(history)


def check(history: History) -> None:
    trace = history.trace
    owners = [arrival.request_id for arrival in trace.arrivals]
    for (record, moments), books in zip(story(trace), history.books, strict=True):
        told = {
            owners[m.request]: ("waits" if m.doing == WAITS else "runs", m.computed, m.known, m.held)
            for m in moments.values()
            if not m.ended
        }
        assert told == books, record.step
        assert len({block for m in moments.values() for block in m.held}) == record.used_blocks
        shares = [share for share in record.scheduled if share.state != "abort"]
        assert sum(m.computed - m.start for m in moments.values() if m.ended != "abort" and m.doing != WAITS) == sum(
            share.num_tokens for share in shares
        )
        ended = {owners[m.request] for m in moments.values() if m.ended and m.ended != "abort"}
        assert ended == set(record.finished)
        assert sorted(owners[m.request] for m in moments.values() if m.ended == "abort") == sorted(record.aborted)
        assert {owners[m.request] for m in moments.values() if m.preempted} == set(record.preempted) - set(record.aborted)
    pool = BlockPool(trace)
    assert [row[0] for row in pool.rows] == [record.used_blocks for record in trace.steps]
    assert [sum(row) for row in pool.rows] == [history.config.cache.num_blocks] * len(trace.steps)
    for name in dict.fromkeys(owners):
        life = RequestLife(trace, name)
        assert len(life.says) == len(life.rows) == len(life.data["frames"]) <= len(trace.steps)
        json.dumps(life.get_state()["data"])


@pytest.mark.parametrize("cached", [False, True])
def test_a_life_counts_what_the_records_count(cached: bool) -> None:
    history = crowded(cached)
    trace = history.trace
    assert sum(len(record.preempted) for record in trace.steps) > 0
    for name in "abcd":
        life = RequestLife(trace, name)
        shares = {record.step: s for record in trace.steps for s in record.scheduled if s.request_id == name}
        for step, (doing, start, computed, known, table, _) in enumerate(life.data["frames"], life.first):
            share = shares.get(step)
            assert (doing in ("waits", "keeps")) == (share is None)
            if share:
                assert (computed - start, computed, known) == (
                    share.num_tokens, share.num_computed_tokens, share.num_tokens_known,
                )  # fmt: skip
                assert tuple(life.data["tables"][table]) == share.block_ids
                assert life.rows[step - life.first][2:4] == [share.num_computed_tokens, share.num_tokens_known]
        assert len(life.data["pieces"]) == 9 + 9
        assert life.first + len(life.says) - 1 == max(shares)
        assert re.search(r"ends \(length\) and gives back \d blocks\.$", life.says[-1])


def test_the_words_of_a_life() -> None:
    says = dict(enumerate(RequestLife(crowded().trace, "c").says, 2))
    assert says[2] == "c arrives with a prompt of 9 tokens. It waits."
    assert says[3] == "c computes the first token of its prompt (position 0) and takes blocks 6, 7 and 8."
    for words in (
        "computes 4 more tokens of its prompt (positions 1 to 4)",
        "computes the last ",
        " tokens again (positions ",
        "c is preempted: it gives back its blocks",
        "takes block",
        "c waits.",
    ):
        assert words in " ".join(says.values()), words


def test_a_budget_that_is_spent_is_told() -> None:
    history = History(CacheConfig(num_blocks=8, block_size=4), SchedulerConfig(max_num_batched_tokens=1))
    history.add("a", 1, 3)
    history.step()
    history.add("b", 1, 1)
    assert RequestLife(history.drain().trace, "b").says[0] == "b arrives with a prompt of 1 token. It waits."
    running = History(CacheConfig(num_blocks=8, block_size=4), SchedulerConfig(max_num_batched_tokens=4))
    running.add("a", 2, 3)
    running.add("b", 5, 1)
    running.scheduler.config = SchedulerConfig(max_num_batched_tokens=3)
    running.step()
    running.scheduler.config = SchedulerConfig(max_num_batched_tokens=1)
    running.step()
    says = "b keeps its blocks and computes nothing: the budget of this step goes to others."
    assert RequestLife(running.trace, "b").says[1] == says


def test_a_hit_of_the_prefix_cache_is_told() -> None:
    says = " ".join(RequestLife(crowded(cached=True).trace, "c").says)
    assert "finds its first 8 tokens in the prefix cache" in says


def test_shared_blocks_have_all_their_holders() -> None:
    data = BlockPool(crowded(cached=True).trace).data
    holders = [
        [request for request, table, *_, ended in frame if not ended and 0 in data["tables"][table]] for frame in data["frames"]
    ]
    assert max(map(len, holders)) > 1


def test_the_words_of_the_pool() -> None:
    says = BlockPool(crowded().trace).says
    assert says[0] == "Tokens computed: 6 for a. a takes 0, 1, 2. 3 of 10 blocks are held."
    everything = " ".join(says)
    assert "(preempted)" in everything and "(length)" in everything
    assert "b finds 0, 1 in the prefix cache. b takes 3." in BlockPool(crowded(cached=True).trace).says[2]
    assert says[-1].endswith("0 of 10 blocks are held.")


def test_a_request_that_comes_and_ends_in_one_step_is_seen() -> None:
    history = History(CacheConfig(num_blocks=4, block_size=4), SchedulerConfig())
    history.add("a", 3, 1)
    history.drain()
    assert BlockPool(history.trace).says == [
        "Tokens computed: 3 for a. a takes 0. a gives back 1 block (length). 0 of 4 blocks are held."
    ]
    assert RequestLife(history.trace, "a").rows == [["prompt", "0 to 2", 3, 4, "0"]]


def test_names_that_come_again_are_told_apart() -> None:
    history = History(CacheConfig(num_blocks=4, block_size=4), SchedulerConfig())
    for tokens in (1, 2):
        history.add("a", tokens, 1)
        history.drain()
    assert names_of(history.trace) == ["a", "a (2)"]
    assert BlockPool(history.trace).says[1].startswith("Tokens computed: 2 for a (2).")
    assert RequestLife(history.trace, "a (2)").first == 1


def test_a_pool_of_many_blocks_draws_those_that_were_held() -> None:
    history = History(CacheConfig(num_blocks=512, block_size=16), SchedulerConfig())
    history.add("a", 200, 2)
    assert BlockPool(history.drain().trace).data["num_drawn"] == 16
    empty = History(CacheConfig(num_blocks=512), SchedulerConfig())
    empty.step()
    assert BlockPool(empty.trace).data["num_drawn"] == 0


def bad_traces() -> dict[str, tuple[Any, str]]:
    trace = crowded().trace
    strange = trace.steps[0].scheduled
    return {
        "no steps": (lambda: BlockPool(Trace(model="m", config=trace.config, steps=())), "has no steps"),
        "no request": (lambda: RequestLife(trace, "z"), "request 'z' is not in the trace; known: 'a', 'b', 'c', 'd'"),
        "a hole": (
            lambda: BlockPool(Trace(model="m", config=trace.config, steps=trace.steps[:2] + trace.steps[3:])),
            "step 3 comes",
        ),
        "no arrival": (
            lambda: BlockPool(Trace(model="m", config=trace.config, steps=(StepRecord(**NOTHING, scheduled=strange),))),
            "'a' runs and never arrived",
        ),
        "no operators": (lambda: LayerShapes([]), "there are no operators"),
    }


NOTHING: dict[str, Any] = {"step": 0, "waiting": 0, "running": 0, "free_blocks": 1, "cached_blocks": 0, "used_blocks": 0}


@pytest.mark.parametrize("name", bad_traces())
def test_what_cannot_be_shown_is_refused_by_name(name: str) -> None:
    make, message = bad_traces()[name]
    with pytest.raises(InvalidTrace, match=re.escape(message)):
        make()


def test_a_link_is_a_plain_name() -> None:
    for link in ("", "Life", "a b", "#x", "1st"):
        with pytest.raises(InvalidConfig, match="link is"):
            BlockPool(crowded().trace, link=link)


@pytest.fixture(scope="module")
def replays() -> list[Replay]:
    trace, lab = crowded().trace, load_model("lab", backend="reference")
    return [RequestLife(trace, "d"), BlockPool(trace), LayerShapes(record_operators(lab, [1, 2, 3]))]


def test_a_replay_says_the_same_of_itself_always(replays: list[Replay]) -> None:
    again = RequestLife(crowded().trace, "d")
    assert repr(replays[0]) == repr(again) == "RequestLife()"
    bundle = again._repr_mimebundle_()[0]
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/html"] == replays[0]._repr_mimebundle_()[0]["text/html"]


def test_the_table_says_all_steps_and_is_text(replays: list[Replay]) -> None:
    for shown in replays:
        html = shown._repr_mimebundle_()[0]["text/html"]
        assert html.count("<tr>") == len(shown.says) + 1
        assert html.count('<th scope="col"') == len(shown.columns) + 2
        assert html.count('<th scope="row"') == len(shown.says)
    hostile = History(CacheConfig(num_blocks=4, block_size=4), SchedulerConfig())
    hostile.add("<img src=x onerror=alert(1)>", 3, 1)
    html = RequestLife(hostile.drain().trace, "<img src=x onerror=alert(1)>")._repr_mimebundle_()[0]["text/html"]
    assert "<img" not in html and "&lt;img src=x onerror=alert(1)&gt; arrives" in html


def test_a_step_is_kept_within_the_steps(replays: list[Replay]) -> None:
    life = RequestLife(crowded().trace, "d", step=4)
    assert (life.first, life.step) == (2, 4)
    for asked, got in ((1, 2), (10**6, 2 + len(life.says) - 1)):
        life.step = asked
        assert life.step == got


def test_all_replays_share_one_player(replays: list[Replay]) -> None:
    player = (WIDGETS / "player.js").read_text()
    for shown in replays:
        assert shown._esm.startswith("/*! player.js */\n" + player)
        assert shown._css.startswith(joined("replay.css"))
        assert shown._esm.count("export default player(") == 1


def test_a_request_has_the_same_colour_in_pictures_and_replays() -> None:
    css = (WIDGETS / "replay.css").read_text()
    assert tuple(re.findall(r"--hue-\d: (#\w+);", css)) == pictures.COLOURS
    assert [data["colour"] for name in "abcd" for data in [RequestLife(crowded().trace, name).data]] == [0, 1, 2, 3]


def test_every_operator_of_the_decoder_is_explained(replays: list[Replay]) -> None:
    shapes = replays[2]
    names = [stop["name"] for stop in shapes.data["stops"] if "rest" not in stop]
    assert set(names) <= SAYS.keys() and names[0] == "embedding" and names[-1] == "head"
    inputs, weight, out = "tokens 3 × hidden 256", "heads x head dim 256 × hidden 256", "tokens 3 × heads x head dim 256"
    assert shapes.rows[2] == ["q", inputs, weight, out, f"{8 * 256 * 256:,}", "0", f"{2 * 3 * 256 * 256:,}"]
