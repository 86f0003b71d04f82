"""The rendered book: it builds without a warning, every page is whole with no network, every link leads somewhere.

The book is built here if it is absent or stale (`python3 -m labcore verify` has just built it).
"""

from __future__ import annotations

import functools
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from pages import Seen, chromium

from labcore.lab import capabilities
from labcore.lab.environment import Environment
from labcore.lab.up import book_stamp

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
CHAPTERS = [TOC["root"], *(chapter["file"] for part in TOC["parts"] for chapter in part["chapters"])]
PAGES = [*CHAPTERS, "search", "genindex"]


@pytest.fixture(scope="session")
def book() -> Path:
    """The folder of the rendered book, up to date."""
    html = ROOT / "_build" / "html"
    stamp, wanted = book_stamp(Environment(ROOT))
    made = stamp.stat().st_mtime if stamp.is_file() and stamp.read_text() == wanted and (html / "index.html").is_file() else 0
    if made < Path(capabilities.__file__).stat().st_mtime:
        stamp.unlink(missing_ok=True)
        argv = [sys.executable, "-c", BUILD, "build", "--all", "-q", "-W", "-n", "--keep-going", "."]
        result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
        stamp.write_text(wanted)
    return html


@pytest.fixture(scope="module")
def origins(book: Path) -> Iterator[dict[str, str]]:
    """The book over http and as files."""
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *args: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(book)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {"http": f"http://127.0.0.1:{server.server_port}", "file": book.as_uri()}
    server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def visit(browser: Any, origin: str, page: str, fragment: str = "", **options: Any) -> tuple[Any, Seen]:
    tab = browser.new_page(**options)
    tab.set_default_timeout(120_000)  # a busy machine is no fault of the page
    seen = Seen(tab, origin)
    tab.goto(f"{origin}/{page}.html{fragment}", wait_until="load")
    if options.get("java_script_enabled", True):
        tab.evaluate("window.MathJax?.startup?.promise")
    return tab, seen


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_a_page_needs_no_network_and_has_no_error(browser: Any, origins: dict[str, str], scheme: str, page: str) -> None:
    tab, seen = visit(browser, origins[scheme], page)
    tab.wait_for_timeout(300)  # for what a script asks for later
    tab.close()
    assert seen.foreign == []
    assert seen.errors == []


@pytest.mark.parametrize("page", CHAPTERS)
def test_a_narrow_page_does_not_scroll_sideways(browser: Any, origins: dict[str, str], page: str) -> None:
    tab, _ = visit(browser, origins["file"], page, viewport={"width": 400, "height": 800})
    overflow = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    tab.close()
    assert overflow <= 0


def test_pictures_turn_light_on_a_dark_page(browser: Any, origins: dict[str, str]) -> None:
    for scheme, filtered in (("light", False), ("dark", True)):
        tab, _ = visit(browser, origins["file"], "notebooks/00_whole_engine", color_scheme=scheme)
        look = tab.locator("div.cell_output img").first.evaluate("image => getComputedStyle(image).filter")
        tab.close()
        assert ("invert" in look) == filtered


def test_a_replay_of_a_chapter_is_walked_through_with_no_kernel(browser: Any, origins: dict[str, str]) -> None:
    """Light and dark, wide and narrow. All that a replay can do is tested in tests/widgets/test_replay_page.py."""
    for scheme, width in (("light", 1280), ("dark", 360)):
        size = {"width": width, "height": 800}
        tab, seen = visit(browser, origins["file"], "notebooks/00_whole_engine", color_scheme=scheme, viewport=size, offline=True)
        life, pool = tab.locator(".replay-life"), tab.locator(".replay-pool")
        life.get_by_label("Forward").click()
        tab.keyboard.press("ArrowRight")
        assert life.locator(".replay-says").inner_text() == "b computes its newest token (position 11) and samples ','."
        assert life.locator(".replay-counter").inner_text() == "step 4 of 7"
        pool.get_by_label("Last step").click()
        pool.locator(".pool-block").nth(10).click()
        assert pool.locator(".pool-chosen").inner_text() == "Block 10: nobody holds it; it is free."
        assert (life.evaluate("e => getComputedStyle(e).colorScheme"), seen.errors, seen.foreign) == (scheme, [], [])
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.close()


def test_an_address_opens_a_replay_at_a_step(browser: Any, origins: dict[str, str]) -> None:
    tab, _ = visit(browser, origins["file"], "notebooks/00_whole_engine", fragment="#pool=6")
    pool = tab.locator(".replay-pool")
    assert pool.locator(".replay-counter").inner_text() == "step 6 of 8"
    tab.wait_for_function("(top => top >= 0 && top < 300)(document.querySelector('.replay-pool').getBoundingClientRect().top)")
    tab.close()


def test_the_sources_of_replays_stand_in_a_page_once(book: Path) -> None:
    page = (book / "notebooks" / "00_whole_engine.html").read_text(encoding="utf-8")
    assert page.count("function player(view)") == page.count(".replay-bar {") == 1
    assert page.count("widget-view+json") == 2 and "@jupyter-widgets" not in page and "cdn" not in page
    state = page.split("widget-state+json")[1].split("</script>")[0]
    sources = sum(len(part) for part in json.loads(state.partition(">")[2])["shared"] if str(part).startswith("/*!"))
    assert len(state) - sources < 10_000


def test_without_scripts_a_replay_is_a_table(browser: Any, origins: dict[str, str]) -> None:
    tab, _ = visit(browser, origins["file"], "notebooks/00_whole_engine", java_script_enabled=False)
    table = tab.locator("table.lab-replay").first
    assert table.is_visible() and table.locator("tr").count() == 7
    assert "b arrives with a prompt of 11 tokens." in table.inner_text()
    tab.close()


def test_maths_is_set_and_the_live_control_has_a_picture(browser: Any, origins: dict[str, str]) -> None:
    tab, _ = visit(browser, origins["file"], "notebooks/00_whole_engine")
    assert tab.locator("mjx-container").count() > 0
    assert "5 tokens, ended by: length" in tab.locator(".lab-live").inner_text()
    tab.close()


class Links(HTMLParser):
    """The ids of a page, and where it points."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name in ("href", "src") and value and not (tag == "link" and dict(attributes).get("rel") == "canonical"):
                self.targets.add(value)


def test_every_link_leads_somewhere(book: Path) -> None:
    pages = {path.resolve(): Links(path) for path in book.rglob("*.html") if "_static" not in path.parts}
    lost = []
    for path, links in pages.items():
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            aim = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not aim.exists() or (url.fragment and aim in pages and unquote(url.fragment) not in pages[aim].ids):
                lost.append(f"{path.relative_to(book.resolve())}: {target}")
    assert len(pages) >= len(PAGES)
    assert lost == []


def test_links_out_of_the_book_are_few_and_known(book: Path) -> None:
    """A reader's browser follows them on a click only; cited are papers, public reports, and where a format or a text is from."""
    hosts = set()
    for page in CHAPTERS:
        for target in Links(book / f"{page}.html").targets:
            hosts.add(urlsplit(target).netloc)
    papers = {"arxiv.org", "www.usenix.org", "cdn.openai.com", "doi.org", "dl.acm.org", "www.cs.virginia.edu"}
    tools = {"docs.python.org", "jinja.palletsprojects.com", "pybind11.readthedocs.io", "nanobind.readthedocs.io", "pytorch.org"}
    assert hosts <= papers | tools | {"", "github.com", "triton-lang.org", "www.un.org"}


def test_the_map_leads_to_what_is_here_and_marks_what_is_to_come(book: Path) -> None:
    page = (book / "book" / "intro.html").read_text(encoding="utf-8")
    here = re.findall(r'<a class="organ" href="([^"]+)"><b>(.*?)</b>', page)
    to_come = re.findall(r'<span class="organ to-come"><b>(.*?)</b>.*?<i>to come</i></span>', page)
    assert "data-pages" not in page
    assert {"Tokenizer", "Scheduler", "Paged KV", "Decoder", "Sampler", "Stream"} <= {name for _, name in here}
    assert len(here) + len(to_come) == len(re.findall(r'class="organ', page))


def test_the_table_of_capabilities_is_the_one_that_tests_check(book: Path) -> None:
    page = (book / "book" / "capabilities.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    for row in capabilities.CAPABILITIES:
        assert row.symbol in text and row.test in text


def test_every_test_that_a_page_names_exists() -> None:
    named = set()
    for path in (ROOT / "book").rglob("*.md"):
        named |= set(re.findall(r"`(tests/\S+?\.py)::(\w+)`", path.read_text(encoding="utf-8")))
    assert len(named) > 15
    for file, name in named:
        assert re.search(rf"^(def|class) {name}\b|^{name} =", (ROOT / file).read_text(encoding="utf-8"), re.M), f"{file}::{name}"


def test_no_path_of_this_machine_is_published(book: Path) -> None:
    private = (str(ROOT), str(Path.home()))
    for path in [*book.rglob("*.html"), *book.rglob("*.js")]:
        if "mathjax" not in path.parts:
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not any(place in text for place in private), path
