"""The live control: it answers when it is moved, shows a refusal and goes on, and has a picture where there is no kernel."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from pages import chromium

from labcore.engine.llm import LLM
from labcore.widgets.live_generate import LiveGenerate


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("lab")


def test_moving_a_control_answers_anew(llm: LLM) -> None:
    live = LiveGenerate(llm, "hello", max_tokens=3)
    assert "3 tokens, ended by:" in live.answer.value
    live.max_tokens.value = 4
    assert "4 tokens, ended by:" in live.answer.value
    before = live.answer.value
    live.prompt.value = "good morning"
    assert "good morning" in live.answer.value != before


def test_a_seed_matters_when_sampled_and_gives_the_same_again(llm: LLM) -> None:
    live = LiveGenerate(llm, "hello", max_tokens=12, temperature=1.5)
    first = live.answer.value
    live.seed.value = 7
    assert live.answer.value != first
    live.seed.value = 0
    assert live.answer.value == first


def test_a_refusal_is_shown_and_the_next_prompt_runs(llm: LLM) -> None:
    live = LiveGenerate(llm, "hello", max_tokens=2)
    live.prompt.value = ""
    assert "refused: " in live.answer.value and "the prompt is empty" in live.answer.value
    live.prompt.value = "hello"
    assert "2 tokens" in live.answer.value
    assert not llm.engine.has_unfinished


def test_changes_on_several_threads_take_turns() -> None:
    live = LiveGenerate(LLM("lab"), "hello", max_tokens=24)
    expected = live.answer.value
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(live.generate, range(12)))
    assert live.answer.value == expected


def test_what_a_model_or_a_reader_writes_is_text(llm: LLM) -> None:
    live = LiveGenerate(llm, "<b>bold</b> & <script>", max_tokens=1)
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; &lt;script&gt;" in live.answer.value and "<script" not in live.answer.value


def test_it_has_a_picture_and_says_the_same_of_itself_always(llm: LLM) -> None:
    live, other = (LiveGenerate(llm, "hello", max_tokens=2) for _ in range(2))
    bundle = live._repr_mimebundle_()
    assert bundle["text/plain"] == repr(live) == repr(other) == "LiveGenerate()"
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/html"] == other._repr_mimebundle_()["text/html"]
    assert 'class="lab-live"' in bundle["text/html"] and live.answer.value in bundle["text/html"]


@contextlib.contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """A JupyterLab of its own on a folder, with nothing of the user's settings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {name: str(folder / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"} | own
    argv = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    argv += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True"]
    argv += [f"--ServerApp.root_dir={folder}", "--LabApp.news_url=None"]
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/api/status", timeout=1)
                break
            time.sleep(0.1)
        else:
            pytest.fail((folder / "lab.log").read_text())
        yield url
    finally:
        server.terminate()
        server.wait(20)


CELL = """\
from labcore import LLM
from labcore.widgets.live_generate import LiveGenerate
LiveGenerate(LLM("lab"), "hello", max_tokens=3)"""
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}  # without it JupyterLab asks
READY = "window.jupyterapp?.shell?.currentWidget?.context?.sessionContext?.session?.kernel?.status == 'idle'"
RUN_ALL = "() => void window.jupyterapp.commands.execute('notebook:run-all-cells')"


def test_in_jupyterlab_a_slider_and_the_text_are_answered(tmp_path: Path) -> None:
    nbformat.write(new_notebook(cells=[new_code_cell(CELL)], metadata={"kernelspec": KERNEL}), tmp_path / "live.ipynb")
    with chromium() as browser, jupyterlab(tmp_path) as url:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(120_000)
        page.goto(f"{url}/lab/tree/live.ipynb?reset")
        page.wait_for_function(READY)
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
