"""The tree of prefixes shows what the cache holds after every step; the pool beside it, who holds a block and what keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import make_sequence
from replay_pages import pages_of_replays

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidTrace
from labcore.core.trace import StepRecord
from labcore.engine.scheduler import Scheduler
from labcore.engine.trace_file import Trace
from labcore.kv.paged_cache import PagedCache
from labcore.kv.prefix_cache import Domain
from labcore.widgets.block_pool import BlockPool
from labcore.widgets.tree_growth import TreeGrowth, TreeWitness

HOSTILE = "<img src=x onerror=alert(1)>"


class Run:
    """A scheduler with a radix tree, a witness, and after each step what the tree and the tables were."""

    def __init__(self, num_blocks: int = 14, block_size: int = 4, **limits: Any) -> None:
        pool = CacheConfig(num_blocks=num_blocks, block_size=block_size, prefix_cache="radix")
        self.config = EngineConfig(cache=pool, scheduler=SchedulerConfig(**limits))
        self.cache, self.records = PagedCache(pool), list[StepRecord]()
        self.tree: Any = self.cache.prefix_cache
        self.witness = TreeWitness(self.tree)
        self.scheduler = Scheduler(self.config.scheduler, self.cache, self.look)
        self.books: list[Any] = []

    def look(self, record: StepRecord) -> None:
        self.records.append(record)
        self.witness(record)
        held = {block for s in self.scheduler.running for block in s.block_table}
        self.books.append((sorted((list(n.tokens), list(n.blocks)) for n in self.tree.nodes()), held))

    def add(self, name: str, text: str, new: int, salt: str = "", n: int = 1) -> None:
        prompt = list(map(ord, text))
        self.scheduler.add(make_sequence(name, prompt, len(prompt) + new, n, domain=Domain(salt=salt)))

    def steps(self, count: int) -> Run:
        for _ in range(count):
            plan = self.scheduler.schedule()
            self.scheduler.update(plan, [[ord(".")] * share.num_samples for share in plan.scheduled])
        return self

    @property
    def trace(self) -> Trace:
        return Trace(
            model="oracle", config=self.config, steps=tuple(self.records), pieces={i: chr(i) for i in range(32, 127)}
        )  # fmt: skip


def poets() -> Run:
    run = Run()
    run.add("a", "You are a poet. Sing of rain", 5)
    run.steps(2).add("b", "You are a poet. Sing of snow", 5)
    run.steps(2).add(HOSTILE, "You are a cook. Make soup", 5)
    run.steps(6).add("d", "Add up the numbers from one to nine now", 4)
    return run.steps(4)


actions = st.lists(
    st.one_of(st.tuples(st.text("ab", min_size=1, max_size=20), st.sampled_from(["", "", "x"])), st.integers(1, 4)), max_size=20
)


@settings(max_examples=60)
@given(actions=actions, num_blocks=st.integers(6, 14), size=st.sampled_from([1, 2, 4]), chunk=st.sampled_from([None, 3]))
def test_the_frames_are_what_the_tree_was(actions: list[Any], num_blocks: int, size: int, chunk: int | None) -> None:
    run, names = Run(max(num_blocks, 30 // size), size, max_num_seqs=2, max_chunk_tokens=chunk), iter(range(99))
    for action in actions:
        if isinstance(action, tuple):
            run.add(str(next(names)), action[0], 3, action[1], n=1 + len(action[0]) % 2)
        else:
            run.steps(action)
    run.steps(1)
    growth = TreeGrowth(run.trace, run.witness)
    data = growth.data
    for frame, row, (nodes, held) in zip(data["frames"], growth.rows, run.books, strict=True):
        told = [(data["texts"][text], list(blocks)) for _, _, _, text, blocks, *_ in frame]
        assert sorted(told) == sorted(("".join(map(chr, tokens)), blocks) for tokens, blocks in nodes)
        shown_held = {block for *_, blocks, who, _ in frame for block in blocks[: max([count for _, count in who], default=0)]}
        kept = {block for _, blocks in nodes for block in blocks}
        assert shown_held == held & kept
        assert row[:4] == [len(nodes), len(kept), len(held & kept), len(kept - held)]
        for i, (_, depth, start, _, blocks, _, _) in enumerate(frame):  # it begins where the edge that it hangs on ends
            above = [edge for edge in frame[:i] if edge[1] == depth - 1][-1:]
            assert start == (above[0][2] + size * len(above[0][4]) if above else 0) and len(blocks) > 0


def test_the_words_of_a_step() -> None:
    run = poets()
    says = TreeGrowth(run.trace, run.witness).says
    assert says[0] == "a finds nothing. A new edge of 7 blocks hangs at position 0."
    assert says[1] == "The tree stays as it is."
    assert says[2] == (
        "b finds 24 tokens, in 0, 1, 2, 3, 4 and 5. An edge splits before position 24. "
        "A new edge of 1 block hangs at position 24."
    )
    assert "An edge grows by 1 block. a ends: length." in says[4]
    assert "Given up, least recently used first: 7. An edge splits before position 8." in says[5]


def test_a_witness_of_another_run_is_refused() -> None:
    run = poets()
    with pytest.raises(InvalidTrace, match="the witness saw 0"):
        TreeGrowth(run.trace, TreeWitness(run.tree))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    with pages_of_replays(tmp_path_factory.mktemp("pages")) as opened:
        yield opened


def test_an_edge_tells_its_facts_by_mouse_and_keyboard(shown: Callable[..., Any]) -> None:
    run = poets()
    tab = shown(TreeGrowth(run.trace, run.witness))
    edges, chosen, says = tab.locator(".tree-edge"), tab.locator(".tree-chosen"), tab.locator(".replay-says")
    assert edges.count() == 1 and chosen.inner_text().startswith("Choose an edge")
    for _ in range(5):
        tab.get_by_label("Forward").click()
    assert edges.count() == 5 and says.inner_text().startswith(f"{HOSTILE} finds 8 tokens")
    assert edges.locator(".tree-text").all_inner_texts() == ["You·are·", "a·poet.·Sing·of·", "rain", "snow", "a·cook.·Make·sou"]
    assert tab.locator(".tree-gone").inner_text() == "Given up in this step: 7"
    edges.first.click()
    assert chosen.inner_text() == f"Positions 0 to 7, blocks 0 and 1, held by b and {HOSTILE}. It says: You·are·"
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    assert chosen.inner_text() == "Positions 24 to 27, block 6, held by nobody. It says: rain"
    assert tab.evaluate("document.activeElement.querySelector('.tree-text').textContent") == "rain"
    tab.keyboard.press("ArrowRight")
    assert says.inner_text().endswith("b ends: length.") and tab.locator(".tree-edge[aria-pressed=true]").count() == 1
    edges.last.click()  # an edge that is not there in the beginning
    tab.get_by_label("First step").click()
    assert chosen.inner_text() == "The edge that you chose is not in the tree in this step."
    tab.close()


def new_in(tab: Any) -> list[str]:
    return sorted(tab.locator(".tree-edge .tree-new").all_inner_texts(), key=lambda text: int(text[1:]))


def test_what_is_held_idle_shared_and_new_can_be_told_apart(shown: Callable[..., Any]) -> None:
    run = poets()
    tab = shown(TreeGrowth(run.trace, run.witness))
    for _ in range(5):
        tab.get_by_label("Forward").click()
    blocks = tab.locator(".tree-edge .tree-block")
    several, idle, new = (tab.locator(f".tree-edge .tree-{kind}").all_inner_texts() for kind in ("several", "idle", "new"))
    assert (several, idle, new) == (["0", "1"], ["6"], ["+10", "+11", "+12", "+13"])
    assert blocks.nth(0).get_attribute("title") == f"block 0: b and {HOSTILE}"
    assert tab.locator(".replay img").count() == 0
    tab.get_by_label("Forward").click(click_count=5)  # blocks that are given up and come back with another text are new
    assert tab.locator(".tree-gone").inner_text() != "" and new_in(tab) == [f"+{block}" for block in sorted(run.records[10].kept)]
    tab.close()


def test_a_domain_is_named(shown: Callable[..., Any]) -> None:
    run = Run()
    run.add("a", "one text for all", 2, salt="mine")
    run.add("b", "one text for all", 2)
    tab = shown(TreeGrowth(run.steps(3).trace, run.witness))
    tab.get_by_label("Last step").click()
    assert tab.locator(".tree-text").all_inner_texts() == ["[mine] one·text·for·all", "one·text·for·all"]
    tab.locator(".tree-edge").first.click()
    assert "; only for mine. It says" in tab.locator(".tree-chosen").inner_text()
    tab.close()


def test_it_fits_a_telephone(shown: Callable[..., Any]) -> None:
    run = poets()
    tab = shown(TreeGrowth(run.trace, run.witness), viewport={"width": 360, "height": 800})
    for _ in run.records[1:]:
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.get_by_label("Forward").click()
    tab.close()


def test_the_pool_shows_copies_forks_and_what_the_cache_keeps(shown: Callable[..., Any]) -> None:
    run = Run(10)
    run.add("a", "one two three", 4, n=3)
    pool = BlockPool(run.steps(6).trace)
    assert "←5 was copied from block 5" in pool.caption and "kept by the prefix cache" in pool.caption
    tab = shown(pool)
    blocks, chosen = tab.locator(".pool-block"), tab.locator(".pool-chosen")
    signs = tab.locator(".pool-sign")
    assert blocks.first.locator(".pool-name").inner_text() == "a+2"
    blocks.first.click()
    assert (
        chosen.inner_text()
        == "Block 0: a, a#1 and a#2 hold positions 0 to 3 in it, all computed. The prefix cache keeps it, too."
    )
    tab.get_by_label("Forward").click()
    assert [text for text in signs.all_inner_texts() if text] == ["←3", "←3"]
    blocks.nth(4).click()
    assert chosen.inner_text() == "Block 4: a holds positions 12 to 15 in it, 2 of 4 computed. Copied from block 3."
    tab.get_by_label("Last step").click()
    assert tab.locator(".pool-idle").count() == int(tab.locator("tr[aria-current] td").nth(1).text_content())
    blocks.first.click()
    assert chosen.inner_text() == "Block 0: nobody holds it; the prefix cache keeps it."
    assert blocks.first.get_attribute("aria-label") == "block 0: not held, kept by the prefix cache"
    assert blocks.first.locator(".pool-name").inner_text() == "kept"
    tab.close()


def test_the_kept_blocks_of_a_trace_are_those_of_the_cache() -> None:
    run = poets()
    data, kept = BlockPool(run.trace).data, set[int]()
    for (went, came), (nodes, _) in zip(data["kept"], run.books, strict=True):
        kept = (kept - set(went)) | set(came)
        assert kept == {block for _, blocks in nodes for block in blocks}
