"""A page with one replay, put together as the book's extension does it, and opened in a browser with no network."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pages import Seen, chromium

from labcore.lab.notebooks import VIEW
from labcore.widgets.replay import Replay

ROOT = Path(__file__).resolve().parents[1]


def page_of(replay: Replay) -> str:
    """A page with this replay alone, put together as the book's extension does it."""
    spec = importlib.util.spec_from_file_location("labbook", ROOT / "book/_ext/labbook.py")
    assert spec and spec.loader
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    state = {replay.model_id: {"model_module": "anywidget", "state": replay.get_state(replay.trait_names(sync=True))}}
    models = json.loads(json.dumps(state, default=lambda layout: f"IPY_MODEL_{layout.model_id}"))
    return f"""<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>replay</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<script type="application/vnd.jupyter.widget-state+json">{extension.lean(models, set(models))}</script>
<script src="{(ROOT / "book/_static/anywidget-static.js").as_uri()}"></script></head>
<body style="margin: 8px"><script type="{VIEW}">{json.dumps({"model_id": replay.model_id})}</script></body></html>"""


@contextlib.contextmanager
def pages_of_replays(folder: Path) -> Iterator[Callable[..., Any]]:
    """A function that opens a replay in a tab of its own. At the end: nothing went wrong in any of them."""
    seen: list[Seen] = []
    with chromium() as browser:

        def opened(replay: Replay, **options: Any) -> Any:
            path = folder / f"{len(seen)}.html"
            path.write_text(page_of(replay), encoding="utf-8")
            tab = browser.new_page(offline=True, **options)
            seen.append(Seen(tab, "file://"))
            tab.goto(path.as_uri())
            tab.locator(".replay").wait_for()
            return tab

        yield opened
    assert [(one.errors, one.foreign) for one in seen] == [([], [])] * len(seen)
