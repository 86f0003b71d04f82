"""Replays in a static page: opened from the disk, with no kernel and no network, by mouse, finger and keyboard.

The page is put together as the book's extension does it, around a trace with everything in it: waiting, chunks, preemption,
shared blocks, names and texts that are HTML. tests/test_book.py looks at the replays of the chapters.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import anywidget
import numpy as np
import pytest
from histories import crowded
from pages import Seen, chromium, keep_picture

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.scheduler import Scheduler
from labcore.engine.trace_file import Trace
from labcore.kv.paged_cache import PagedCache
from labcore.lab.notebooks import VIEW
from labcore.lab.operators import record_operators
from labcore.lab.oracle import drive, sequence
from labcore.model.expert_load import Routing
from labcore.model.weights import load_model
from labcore.widgets.block_pool import BlockPool
from labcore.widgets.bytes_moved import BytesMoved
from labcore.widgets.expert_routing import ExpertRouting
from labcore.widgets.layer_shapes import LayerShapes
from labcore.widgets.mixed_steps import MixedSteps
from labcore.widgets.request_life import RequestLife
from labcore.widgets.tile_walk import TileWalk
from labcore.widgets.timeline import Timeline
from labcore.widgets.tree_growth import TreeGrowth, TreeWitness

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<img src=x onerror=alert(1)>"
KINDS = ("life", "pool", "shapes", "bytes", "walk", "timeline", "mixed", "tree", "experts")


class Broken(anywidget.AnyWidget):
    _esm = "export default { render() { throw new Error('it is broken'); } }"


def hostile(trace: Trace) -> Trace:
    """The same trace with a name and a text that would be an image, were they ever read as HTML; and an end of a script."""

    def named(record: StepRecord) -> StepRecord:
        def new(name: str) -> str:
            return HOSTILE if name == "a" else name

        return record._replace(
            arrived=tuple(replace(arrival, request_id=new(arrival.request_id)) for arrival in record.arrived),
            scheduled=tuple(share._replace(request_id=new(share.request_id)) for share in record.scheduled),
            preempted=tuple(map(new, record.preempted)),
            finished=tuple(map(new, record.finished)),
        )

    return replace(trace, steps=tuple(map(named, trace.steps)), pieces={1: f" {HOSTILE}</script><!--<script>\n"})


def walk() -> TileWalk:
    """24 keys in tiles of 4. The scores of a tile are 0, -1, -2, -1, but key 9 has 1: the third tile brings a larger one."""
    keys = np.zeros((24, 4))
    keys[:, 0] = np.tile([0.0, -1.0, -2.0, -1.0], 6)
    keys[9, 0] = 1.0
    return TileWalk(np.array([2.0, 0.0, 0.0, 0.0]), keys, keys, tile=4)


def grown() -> TreeGrowth:
    """Three requests in a pool of ten blocks: the second goes on where the first ends, and the tree must yield."""
    pool = CacheConfig(num_blocks=10, block_size=4, prefix_cache="radix")
    cache, records = PagedCache(pool), list[StepRecord]()
    witness = TreeWitness(cache.prefix_cache)
    scheduler = Scheduler(SchedulerConfig(), cache, lambda record: (records.append(record), witness(record)))
    for name, length in (("a", 9), ("b", 13), (HOSTILE, 30)):
        scheduler.add(sequence(name, length, 3))
        drive(scheduler)
    return TreeGrowth(Trace(model="oracle", config=EngineConfig(cache=pool), steps=tuple(records)), witness)


def routed() -> ExpertRouting:
    """40 tokens over ten experts, two each, in eight layers."""
    ids = np.random.default_rng(0).permuted(np.tile(np.arange(10), (8, 40, 1)), axis=2)[:, :, :2]
    routing = Routing(expert_ids=ids, weights=np.full(ids.shape, 0.5), num_experts=10)
    return ExpertRouting(routing, [HOSTILE, " a", "b\n", "\t"] * 10)


@pytest.fixture(scope="module")
def extension() -> ModuleType:
    spec = importlib.util.spec_from_file_location("labbook", ROOT / "book/_ext/labbook.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def html(extension: ModuleType) -> str:
    trace, shared = crowded().trace, hostile(crowded(cached=True).trace)
    lab = load_model("lab", backend="reference")
    shown = [
        Broken(), RequestLife(trace, "c"), RequestLife(shared, HOSTILE, link="life-a"), BlockPool(trace),
        BlockPool(shared, link="shared"), LayerShapes(record_operators(lab, [1, 2, 3])), BytesMoved(512, 512), walk(),
        Timeline(shared), MixedSteps(shared), grown(), routed(),
    ]  # fmt: skip
    state = {w.model_id: {"model_module": "anywidget", "state": w.get_state(w.trait_names(sync=True))} for w in shown}
    models = json.loads(json.dumps(state, default=lambda layout: f"IPY_MODEL_{layout.model_id}"))
    views = [f'<script type="{VIEW}">{json.dumps({"model_id": w.model_id})}</script>' for w in shown]
    between = '\n<p style="height: 60vh">A page has more than replays.</p>\n'
    return f"""<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>replays</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<script type="application/vnd.jupyter.widget-state+json">{extension.lean(models, set(models))}</script>
<script src="{(ROOT / "book/_static/anywidget-static.js").as_uri()}"></script></head>
<body style="margin: 8px">{between.join(["", *views, ""])}</body></html>"""


@pytest.fixture(scope="module")
def url(html: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(html, encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


class Page:
    """A page of its own, offline, with its replays by their link."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.tab = browser.new_page(offline=True, **options)
        self.seen = Seen(self.tab, "file://")
        self.tab.goto(url)
        self.tab.locator(".replay").nth(10).wait_for()

    def replay(self, title: str) -> Any:
        return self.tab.locator(".replay", has=self.tab.locator(".replay-title", has_text=title))


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Page]:
    made = Page(browser, url)
    yield made
    assert made.seen.foreign == []
    assert [error.splitlines()[0] for error in made.seen.errors] == ["Error: it is broken"]
    made.tab.close()


def keep_pictures(page: Page, name: str) -> None:
    for kind in KINDS:
        keep_picture(page.tab.locator(f".replay-{kind}").first, f"{kind}-{name}")


def step(shown: Any) -> int:
    return int(shown.locator(".replay-counter").inner_text().split()[1])


def test_each_source_stands_in_the_page_once_and_nothing_that_is_not_used(html: str) -> None:
    assert html.count("function player(view)") == 1
    assert html.count("function buildLife(") == html.count(".replay-bar {") == 1
    assert "IPY_MODEL_" not in html and "_model_name" not in html
    state = html.split("widget-state+json")[1].split("</script>")[0]
    assert HOSTILE not in state and "<" not in state


def test_a_widget_that_fails_says_so_and_the_others_go_on(page: Page) -> None:
    assert page.tab.get_by_text("This widget could not be shown: it is broken").count() == 1
    assert page.tab.locator(".replay").count() == 11


def test_names_and_tokens_are_text(page: Page) -> None:
    assert page.tab.locator(".replay img").count() == 0
    life = page.replay(f"A request's life: {HOSTILE}")
    life.get_by_label("Last step").click()
    assert "</script><!--<script>" in life.locator(".replay-says").inner_text()
    assert HOSTILE in page.replay("The pool").last.locator(".pool-block").first.get_attribute("aria-label")


def test_buttons_scrubber_and_strip_lead_to_a_step(page: Page) -> None:
    life = page.replay("A request's life: c")
    says = life.locator(".replay-says")
    assert (step(life), says.inner_text()) == (2, "c arrives with a prompt of 9 tokens. It waits.")
    life.get_by_label("Forward").click()
    life.get_by_label("Forward").click()
    assert says.inner_text() == "c computes 4 more tokens of its prompt (positions 1 to 4)."
    assert life.locator(".life-token.life-now").count() == life.locator(".life-slot.life-now").count() == 4
    assert life.locator(".life-token.life-done").count() == 1
    life.get_by_label("Back").click()
    assert step(life) == 3
    life.get_by_label("Last step").click()
    assert (step(life), life.get_by_label("Forward").get_attribute("aria-disabled")) == (18, "true")
    life.get_by_label("Forward").click(force=True)  # it says that it does nothing
    assert step(life) == 18
    life.get_by_label("step 7: waits, preempted").click()
    assert says.inner_text().startswith("c is preempted") and life.locator(".life-blocks").inner_text() == "none"
    life.get_by_label("First step").click()
    box = life.locator(".replay-range").bounding_box()
    page.tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert step(life) == 10


def test_keys_work_inside_and_nowhere_else(page: Page) -> None:
    life, other = page.replay("A request's life: c"), page.replay("The pool").first
    page.tab.keyboard.press("ArrowRight")
    assert (step(life), step(other)) == (2, 0)
    life.get_by_label("Forward").click()  # by mouse: the focus is in the replay, and not on the button
    scroll = page.tab.evaluate("scrollY")
    for keys, expected in {
        "ArrowRight": 4, "Shift+ArrowRight": 14, "ArrowLeft": 13, "Shift+ArrowLeft": 3, "PageUp": 13, "PageDown": 3,
        "End": 18, "Home": 2, "Control+ArrowRight": 2,
    }.items():  # fmt: skip
        page.tab.keyboard.press(keys)
        assert step(life) == expected, keys
    assert (page.tab.evaluate("scrollY"), step(other)) == (scroll, 0)
    page.tab.keyboard.press("ArrowDown")  # not a key of the replay: the page scrolls
    page.tab.wait_for_function("y => scrollY > y", arg=scroll)
    life.locator(".replay-range").focus()
    page.tab.keyboard.press("ArrowUp")
    assert step(life) == 3
    life.get_by_label("Forward").focus()
    page.tab.keyboard.press("Space")  # a button with the focus is pressed
    page.tab.keyboard.press("Enter")
    assert step(life) == 5


def test_play_goes_on_at_its_speed_and_stops(browser: Any, url: str) -> None:
    page = Page(browser, url)
    page.tab.clock.install()
    page.tab.reload()
    life = page.replay("A request's life: c")
    life.get_by_label("Forward").click()
    says = life.locator(".replay-says")
    page.tab.keyboard.press("Space")
    assert (life.get_by_label("Pause").count(), says.get_attribute("aria-live")) == (1, "off")
    page.tab.clock.run_for(2300)
    assert step(life) == 5
    page.tab.keyboard.press("+")
    assert life.locator(".replay-speed").input_value() == "2"
    page.tab.clock.run_for(1200)
    assert step(life) == 7
    page.tab.keyboard.press("Space")
    page.tab.clock.run_for(5000)
    assert (step(life), life.get_by_label("Play").count(), says.get_attribute("aria-live")) == (7, 1, "polite")
    page.tab.keyboard.press("Space")
    page.tab.clock.run_for(60_000)
    assert (step(life), life.get_by_label("Play").count()) == (18, 1)
    page.tab.keyboard.press("Space")  # from the end: anew
    assert step(life) == 2
    page.tab.keyboard.press("ArrowRight")  # whoever steps has stopped it
    assert life.get_by_label("Play").count() == 1
    page.tab.close()


def test_a_block_says_who_holds_it(page: Page) -> None:
    pool = page.replay("The pool").first
    chosen = pool.locator(".pool-chosen")
    assert chosen.inner_text().startswith("Choose a block")
    pool.locator(".pool-block").nth(2).click()
    assert chosen.inner_text() == "Block 2: a holds positions 8 to 11 in it, none computed yet."
    page.tab.keyboard.press("ArrowLeft")  # from block to block
    page.tab.keyboard.press("Enter")
    assert chosen.inner_text() == "Block 1: a holds positions 4 to 7 in it, 2 of 4 computed."
    page.tab.keyboard.press("ArrowDown")  # to block 9, below it
    page.tab.keyboard.press("Enter")
    assert chosen.inner_text() == "Block 9: nobody holds it; it is free."
    page.tab.keyboard.press("Shift+ArrowRight")
    assert (step(pool), chosen.inner_text()) == (10, "Block 9: c holds positions 8 to 11 in it, none computed yet.")
    page.tab.keyboard.press("Enter")
    assert chosen.inner_text().startswith("Choose a block")
    page.tab.keyboard.press("End")
    left, signs = pool.locator(".pool-left"), pool.locator(".pool-left .pool-sign")
    assert (left.count(), set(signs.all_inner_texts())) == (5, {"−"})
    assert left.first.get_attribute("aria-label") == "block 0: given back"


def test_a_shared_block_names_all_its_holders(page: Page) -> None:
    pool = page.replay("The pool").last
    pool.get_by_label("Forward").click(click_count=2)
    assert pool.locator(".pool-shared").count() == 2
    pool.locator(".pool-block").first.click()
    assert pool.locator(".pool-name").first.inner_text() == f"{HOSTILE}+3"
    said = pool.locator(".pool-chosen").inner_text()
    assert said == f"Block 0: {HOSTILE}, b, c and d hold positions 0 to 3 in it, all computed. The prefix cache keeps it, too."
    pool.get_by_label("Last step").click()
    assert pool.locator(".pool-chosen").inner_text() == "Block 0: nobody holds it; the prefix cache keeps it."


def test_the_way_through_a_layer(page: Page) -> None:
    shapes = page.replay("Shapes through a layer")
    shapes.locator(".shapes-stop", has_text="attention").click()
    assert shapes.locator(".shapes-operator").inner_text() == "paged_attention"
    assert "3 tokens" in shapes.locator(".shapes-axes").first.inner_text()
    assert shapes.locator(".shapes-facts b").all_inner_texts() == ["0", f"{2 * 3 * 2 * 32 * 8:,}", f"{4 * 8 * 32 * 6:,}"]
    page.tab.keyboard.press("End")
    assert shapes.locator(".replay-says").inner_text() == "One score for each piece of the vocabulary: the logits."
    for _ in range(30):  # every stop can be drawn
        page.tab.keyboard.press("ArrowLeft")
    assert step(shapes) == 1


def test_the_bytes_of_each_loop(page: Page) -> None:
    moved = page.replay("Bytes moved by rms_norm")
    says, boxes, sums = moved.locator(".replay-says"), moved.locator(".bytes-box:visible"), moved.locator(".bytes-track + small")
    assert says.inner_text() == "Every number is read, and its square is written into an array of its own."
    assert (moved.locator(".bytes-read").inner_text(), moved.locator(".bytes-written").inner_text()) == ("x", "squares")
    assert sums.all_inner_texts() == [f"{2 * 4 * 512 * 512:,} bytes", "0 bytes"]
    moved.get_by_label("Forward").click()
    page.tab.keyboard.press("ArrowRight")
    assert (step(moved), moved.locator(".bytes-does").inner_text()) == (3, "unfused: scale reads x, writes scaled")
    page.tab.keyboard.press("ArrowRight")
    assert says.inner_text() == "It is read back and weighted. Seven arrays have gone by, for one that was wanted."
    assert boxes.all_inner_texts() == ["x", "squares", "scaled", "out"]
    page.tab.keyboard.press("End")
    assert (boxes.all_inner_texts(), moved.locator(".bytes-cached").inner_text()) == (["x", "out"], "x")
    assert sums.all_inner_texts() == [f"{7 * 4 * 512 * 512:,} bytes", f"{2 * 4 * 512 * 512:,} bytes"]
    wide, narrow = moved.locator(".bytes-fill").evaluate_all("fills => fills.map(fill => fill.offsetWidth)")
    assert narrow == pytest.approx(wide * 2 / 7, abs=1)


def test_the_walk_over_the_tiles(page: Page) -> None:
    walked = page.replay("The tile walk")
    says, facts, scores = walked.locator(".replay-says"), walked.locator(".walk-facts b"), walked.locator(".walk-scores")
    assert (says.inner_text(), facts.all_inner_texts()[1]) == ("Nothing was kept before: the first largest score.", "0.00")
    walked.get_by_label("Forward").click()
    assert (says.inner_text(), facts.all_inner_texts()[1]) == ("No larger score: what was kept stays as it is.", "1.00")
    page.tab.keyboard.press("ArrowRight")
    assert says.inner_text() == "The tile brings a larger score: what was kept is scaled by 0.37."
    assert facts.all_inner_texts() == ["1.00", "0.37", "2.93"]
    assert [scores.locator(f".walk-{state}").count() for state in ("done", "now", "unseen")] == [8, 4, 12]
    line, tallest = scores.locator(".walk-line").bounding_box(), scores.locator(".walk-bar").nth(9).bounding_box()
    assert abs(line["y"] - tallest["y"]) < 3  # the line lies on the largest score
    scores.get_by_label("key 17", exact=True).click()
    assert step(walked) == 5
    page.tab.keyboard.press("ArrowLeft")
    assert (step(walked), walked.locator("tr[aria-current=step] td").first.text_content()) == (4, "12 to 15")


def test_the_table_says_the_same(page: Page) -> None:
    life = page.replay("A request's life: c")
    life.get_by_text("All steps as a table").click()
    rows = life.locator("tbody tr")
    assert rows.count() == 17 and life.locator("thead th[scope=col]").count() == 7
    life.get_by_label("step 7: ").click()
    current = life.locator("tr[aria-current=step]")
    assert current.count() == 1 and current.locator("th[scope=row]").inner_text() == "7"
    assert life.locator(".replay-says").inner_text() == current.locator("td").last.inner_text()


def test_an_address_opens_a_step_and_a_button_makes_one(browser: Any, url: str) -> None:
    page = Page(browser, f"{url}#shared=4")
    shared, life = page.replay("The pool").last, page.replay("A request's life: c")
    assert (step(shared), step(life)) == (4, 2)
    assert 0 <= shared.bounding_box()["y"] < 300
    page.tab.evaluate("location.hash = '#life=12'")
    page.tab.wait_for_function("scrollY < 900")
    assert step(life) == 12
    for strange in ("#life=999", "#life=-1", "#life=x", "#life", "#%E0%A4%A", "#life=1e3"):
        page.tab.evaluate("hash => { location.hash = hash }", strange)
    page.tab.wait_for_function("document.querySelector('.replay-counter').textContent.includes('18 of 18')")
    life.get_by_label("Back").click()
    entries = page.tab.evaluate("history.length")
    life.get_by_role("button", name="Link").or_(life.locator(".replay-link")).first.click()
    assert page.tab.evaluate("[location.hash, history.length]") == ["#life=17", entries]
    assert life.locator(".replay-link").inner_text() in ("Copied", "In the address", "Link")
    page.tab.close()


# Text and its ground as they are painted: colours are read back from a canvas, whatever notation they are in.
CONTRAST = """() => {
  const context = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const paint = (css) => { context.clearRect(0, 0, 1, 1); context.fillStyle = css; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data]; };
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => { const colour = paint(getComputedStyle(element).backgroundColor);
    return colour[3] === 255 ? colour : ground(element.parentElement); };
  const poor = [];
  for (const element of document.querySelectorAll('.replay *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const colour = paint(getComputedStyle(element).color);
    if (!own || !element.checkVisibility() || !colour[3] || element.tagName === 'OPTION') continue;
    const [a, b] = [light(colour), light(ground(element))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) poor.push(`${element.className} ${element.textContent}: ${contrast.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(page: Page, theme: str) -> None:
    page.tab.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
    grounds, all_shown = set(), page.tab.locator(".replay").all()
    for shown in all_shown:
        shown.get_by_text("as a table").click()
        shown.get_by_text("Keys", exact=True).click()
        grounds.add(shown.evaluate("element => getComputedStyle(element).backgroundColor"))
    page.tab.wait_for_timeout(300)  # colours pass into each other
    assert page.tab.evaluate(CONTRAST) == []
    for shown in all_shown:
        for _ in range(5):
            shown.get_by_label("Forward").click()
    assert grounds == {"rgb(255, 255, 255)" if theme == "light" else "rgb(24, 28, 34)"}
    page.tab.wait_for_timeout(300)
    keep_pictures(page, f"page-{theme}")
    assert page.tab.evaluate(CONTRAST) == []


def test_on_a_telephone(browser: Any, url: str) -> None:
    page = Page(browser, url, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    for kind in KINDS:
        shown = page.tab.locator(f".replay-{kind}").first
        shown.get_by_label("Forward").tap()
        shown.get_by_label("Last").tap()
        shown.get_by_text("as a table").tap()
        assert page.tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        small = "elements => elements.filter(e => Math.min(e.offsetWidth, e.offsetHeight) < 34).length"
        assert shown.locator(".replay-button").evaluate_all(small) == 0
    page.tab.set_viewport_size({"width": 360, "height": 1400})  # all of a replay in one picture
    for theme in ("dark", "light"):
        page.tab.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        keep_pictures(page, f"page-{theme}-360")
    page.replay("The pool").first.locator(".pool-block").first.tap()
    assert page.replay("The pool").first.locator(".pool-chosen").inner_text() == "Block 0: nobody holds it; it is free."
    page.tab.close()


def test_whoever_wants_no_motion_gets_none(browser: Any, url: str) -> None:
    for wish, moves in (("reduce", False), ("no-preference", True)):
        page = Page(browser, url, reduced_motion=wish)
        lasts = page.tab.locator(".pool-block").first.evaluate("block => parseFloat(getComputedStyle(block).transitionDuration)")
        assert (lasts > 0) == moves
        page.tab.close()


def test_every_control_has_a_name_and_shows_the_focus(page: Page) -> None:
    nameless = (
        page.tab.locator(".replay")
        .locator("button, input, select")
        .evaluate_all("all => all.filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).length")
    )
    assert nameless == 0
    page.replay("A request's life: c").locator(".replay-range").focus()
    page.tab.keyboard.press("Shift+Tab")
    assert page.tab.evaluate("[document.activeElement.title, getComputedStyle(document.activeElement).outlineWidth]") == [
        "Last step (End)", "2px",
    ]  # fmt: skip
