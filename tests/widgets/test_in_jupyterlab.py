"""Widgets in JupyterLab, with a kernel, as a learner uses them; and replays of a stored notebook, before anything has run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from pages import chromium, jupyterlab, keep_picture

from labcore.lab.notebooks import execute

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}  # without it JupyterLab asks
LIVE = """\
from labcore import LLM
from labcore.widgets.live_generate import LiveGenerate
LiveGenerate(LLM("lab"), "hello", max_tokens=3)"""
RUN = """\
import numpy as np

from labcore import LLM, SamplingParams
from labcore.engine.trace_file import trace_of
from labcore.lab.operators import record_operators
from labcore.widgets.block_pool import BlockPool
from labcore.widgets.bytes_moved import BytesMoved
from labcore.widgets.layer_shapes import LayerShapes
from labcore.widgets.mixed_steps import MixedSteps
from labcore.widgets.request_life import RequestLife
from labcore.widgets.tile_walk import TileWalk
from labcore.widgets.timeline import Timeline
from labcore.widgets.tree_growth import TreeGrowth, TreeWitness

records = []
llm = LLM("lab", observer=records.append)
_ = llm.generate(["good morning", "hello"], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
life = RequestLife(trace_of(llm.engine, records), "request-0")
pool = BlockPool(trace_of(llm.engine, records))
shapes = LayerShapes(record_operators(llm.model, [1, 2, 3]))
moved = BytesMoved(512, 512)
keys = np.random.default_rng(4).standard_normal((24, 8))
walk = TileWalk(2 * keys[0], keys, keys, tile=4)
lines, steps = Timeline(trace_of(llm.engine, records)), MixedSteps(trace_of(llm.engine, records))

from labcore import CacheConfig, EngineConfig
grown = []
cached = LLM("lab", config=EngineConfig(cache=CacheConfig(block_size=4, num_blocks=16, prefix_cache="radix")),
             observer=lambda record: (grown.append(record), witness(record)))
witness = TreeWitness(cached.engine.cache.prefix_cache)
for prompt in ("once upon a time", "once upon a town", "once upon a time"):
    _ = cached.generate(prompt, SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
tree = TreeGrowth(trace_of(cached.engine, grown), witness)

from labcore.lab.equivalence import all_logits
from labcore.model.expert_load import RoutingLog
from labcore.widgets.expert_routing import ExpertRouting
sparse = LLM("lab-moe").model
sparse.router_observer = log = RoutingLog(sparse.backend.to_numpy)
_ = all_logits(sparse, [1, 2, 3])
experts = ExpertRouting(log.routing(sparse.config.moe), ["one", "two", "three"])

from labcore.core.config import SpeculativeConfig
from labcore.widgets.accepted_runs import AcceptedRuns
from labcore.widgets.filters import Filters
drawn = SamplingParams(temperature=0.8, top_k=3, top_p=0.9, seed=1)
law = Filters(np.array([[3.0, 2.0, 1.0, 0.0]]), [0], [1], drawn, piece=str)
copied = []
copying = LLM("lab", config=EngineConfig(speculative=SpeculativeConfig(method="ngram", adaptive=False)), observer=copied.append)
_ = copying.generate("wxyz1234 and wx", SamplingParams(max_tokens=8, temperature=0.0, choices=("yz1234",)))
runs = AcceptedRuns(trace_of(copying.engine, copied), "request-0", lambda token: copying.model.tokenizer.decode([token]))"""
KINDS = ("life", "pool", "shapes", "bytes", "walk", "timeline", "mixed", "tree", "experts", "filters", "runs")
READY = "window.jupyterapp?.shell?.currentWidget?.context?.sessionContext?.session?.kernel?.status == 'idle'"
RUN_ALL = "() => void window.jupyterapp.commands.execute('notebook:run-all-cells')"
NOTEBOOK = "window.jupyterapp.shell.currentWidget.content"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str, Path]]:
    """A browser, a JupyterLab, and the folder that it serves: a stored notebook, and two that have not run."""
    folder = tmp_path_factory.mktemp("lab")
    for name, cells in {
        "live": [LIVE],
        "replay": [
            RUN, "life", "pool", "print('step', life.step)", "shapes", "moved", "walk", "print(moved.step, walk.step)",
            "lines", "steps", "tree", "experts", "law", "runs",
        ],
        "stored": [RUN, "life"],
    }.items():  # fmt: skip
        notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata={"kernelspec": KERNEL})
        nbformat.write(notebook, folder / f"{name}.ipynb")
    execute(folder / "stored.ipynb")  # before the browser: it has an event loop of its own
    trust = {**os.environ, "JUPYTER_DATA_DIR": str(folder / "JUPYTER_DATA_DIR")}
    subprocess.run(
        [sys.executable, "-m", "jupyter", "trust", "stored.ipynb"], cwd=folder, env=trust, check=True, capture_output=True
    )
    with chromium() as browser, jupyterlab(folder) as url:
        yield browser, url, folder


def opened(lab: tuple[Any, str, Path], name: str) -> Any:
    browser, url, _ = lab
    page = browser.new_page(viewport={"width": 1400, "height": 1400})  # all of a replay in one picture
    page.set_default_timeout(120_000)
    page.goto(f"{url}/lab/tree/{name}.ipynb?reset")
    page.wait_for_function(READY)
    return page


def test_a_slider_and_the_text_of_a_live_control_are_answered(lab: tuple[Any, str, Path]) -> None:
    page = opened(lab, "live")
    page.evaluate(RUN_ALL)
    answer = page.locator(".jp-OutputArea-output .widget-html")
    answer.get_by_text("3 tokens, ended by:").wait_for()
    handle = page.locator(".widget-slider:has-text('max_tokens') .noUi-handle")
    handle.focus()
    page.keyboard.press("ArrowRight")
    answer.get_by_text("4 tokens, ended by:").wait_for()
    for _ in range(6):  # and while it still answers these, the text changes: on another thread of the kernel
        page.keyboard.press("ArrowRight")
    text = page.locator(".widget-text input")
    text.fill("good morning")
    text.press("Enter")
    answer.get_by_text("good morning").wait_for()
    answer.get_by_text("10 tokens, ended by:").wait_for()
    assert page.locator(".jp-OutputArea-output .lab-live").count() == 0  # the control itself, not its picture
    page.close()


def test_a_replay_steps_by_mouse_and_keyboard_and_python_sees_it(lab: tuple[Any, str, Path]) -> None:
    page = opened(lab, "replay")
    page.evaluate(RUN_ALL)
    life, pool = page.locator(".replay-life"), page.locator(".replay-pool")
    pool.wait_for()
    address = page.evaluate("location.href")
    life.get_by_label("Forward").click()
    active = page.evaluate(f"{NOTEBOOK}.activeCellIndex")
    for keys in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(keys)
    assert life.locator(".replay-counter").inner_text() == "step 2 of 3"
    assert "request-0 computes its newest token" in life.locator(".replay-says").inner_text()
    pool.locator(".pool-block").first.click()
    for keys in ("ArrowDown", "ArrowUp", "ArrowRight", "Enter", "End"):  # in the notebook they would select and edit cells
        page.keyboard.press(keys)
    assert pool.locator(".pool-chosen").inner_text().startswith("Block 1: ")
    assert page.evaluate(f"[{NOTEBOOK}.mode, {NOTEBOOK}.widgets.length]") == ["command", 14]
    assert page.evaluate(f"{NOTEBOOK}.activeCellIndex") == active + 1  # a click selects the cell that it is in
    assert (page.evaluate("location.href"), life.locator(".replay-link").count()) == (address, 0)
    page.evaluate(f"{NOTEBOOK}.activeCellIndex = 3")
    page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-cell')")
    page.get_by_text("step 2", exact=True).wait_for()
    page.locator(".replay-shapes").get_by_label("Forward").click()
    moved, walk = page.locator(".replay-bytes"), page.locator(".replay-walk")
    moved.get_by_label("Forward").click()
    page.keyboard.press("ArrowRight")
    assert moved.locator(".replay-says").inner_text().startswith("x is read a second time")
    walk.get_by_label("Last tile").click()
    page.keyboard.press("ArrowLeft")
    assert walk.locator(".replay-counter").inner_text() == "tile 5 of 6"
    walk.locator(".walk-shares").get_by_label("key 7", exact=True).click()
    assert walk.locator(".replay-counter").inner_text() == "tile 2 of 6"
    page.evaluate(f"{NOTEBOOK}.activeCellIndex = 7")
    page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-cell')")
    page.get_by_text("3 2", exact=True).wait_for()
    for kind in ("timeline", "mixed", "tree"):
        shown = page.locator(f".replay-{kind}")
        shown.get_by_label("Last step").click()
        page.keyboard.press("ArrowLeft")
        _, at, _, last = shown.locator(".replay-counter").inner_text().split()
        assert int(at) == int(last) - 1
    routing = page.locator(".replay-experts")
    routing.locator(".moe-token").nth(2).click()
    page.keyboard.press("ArrowRight")
    assert routing.locator(".moe-chosen b").inner_text().startswith("layer 1: ")
    law, runs = page.locator(".replay-filters"), page.locator(".replay-runs")
    law.get_by_label("Last step").click()
    page.keyboard.press("ArrowLeft")
    assert law.locator(".replay-says").inner_text().startswith("Top-p 0.9: ")
    runs.get_by_label("Forward").click()
    page.keyboard.press("ArrowRight")
    assert runs.locator(".replay-counter").inner_text().startswith("step 3 of ")
    assert runs.locator(".runs-guess").count() > 1  # one is the legend's
    for theme in ("Light", "Dark"):
        page.evaluate(f"() => void window.jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {theme}'}})")
        page.wait_for_function(f"getComputedStyle(document.querySelector('.replay')).colorScheme == '{theme.lower()}'")
        for kind in KINDS:
            shown = page.locator(f".replay-{kind}")
            keep_picture(shown, f"{kind}-jupyterlab-{theme.lower()}")
            shown.evaluate("element => { element.style.width = '360px' }")
            keep_picture(shown, f"{kind}-jupyterlab-{theme.lower()}-360")
            assert shown.evaluate("element => element.scrollWidth <= element.clientWidth")
            shown.evaluate("element => { element.style.width = '' }")
    page.close()


def test_a_key_outside_of_a_replay_is_the_notebooks(lab: tuple[Any, str, Path]) -> None:
    page = opened(lab, "stored")
    life = page.locator(".replay-life")
    life.wait_for()  # drawn from the stored state: nothing has run
    life.get_by_label("Last step").click()
    assert life.locator(".replay-counter").inner_text() == "step 3 of 3"
    page.locator(".jp-Notebook-cell .jp-InputPrompt").first.click()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Home")
    assert page.evaluate(f"[{NOTEBOOK}.activeCellIndex, {NOTEBOOK}.mode]") == [1, "command"]
    assert life.locator(".replay-counter").inner_text() == "step 3 of 3"
    page.close()
