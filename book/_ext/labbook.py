"""The book's own Sphinx extension: the table of capabilities, the map of the engine, lean replays, and one cure.

- `{capabilities}` prints labcore.lab.capabilities, so that the page cannot drift from what the tests hold true.
- `{engine-map}` takes book/_static/engine.html and links each organ to the first of its pages that exists; an organ
  with none is shown as "to come".
- myst-nb writes the state of all widgets into the page, and with it the whole source of a replay for each replay. Here
  each long value is written once, and what no view shows is left out (book/_static/anywidget-static.js puts it together
  again). A replay's table goes along for readers without JavaScript.
- sphinx-thebe writes the same inline script twice on every page, an error in the browser's console: doubles are dropped.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from labcore.lab import capabilities
from labcore.lab.notebooks import STATE, VIEW
from labcore.widgets.replay import table

MAP = Path(__file__).resolve().parents[1] / "_static" / "engine.html"


class Capabilities(SphinxDirective):
    """The table, area by area."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(capabilities.__file__)
        lines: list[str] = []
        area = ""
        for row in capabilities.CAPABILITIES:
            if row.area != area:
                area = row.area
                lines += ["", f"**{area}**", "", "| capability | level | code, and the test that shows it |", "| - | - | - |"]
            lines.append(f"| {row.name} | {row.level} | `{row.symbol}` `{row.test}` |")
        table = nodes.container(classes=["capabilities"])
        self.state.nested_parse(StringList(lines), self.content_offset, table)
        return [table]


class EngineMap(SphinxDirective):
    """The picture of the whole engine."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(MAP))
        self.env.note_reread()  # a chapter that is new changes it
        html = re.sub(r'<a data-pages="([^"]*)"(.*?)</a>', self._organ, MAP.read_text(encoding="utf-8"), flags=re.DOTALL)
        return [nodes.raw("", html, format="html")]

    def _organ(self, match: re.Match[str]) -> str:
        for page in match[1].split():
            prefix, _, anchor = page.partition("#")
            for docname in sorted(self.env.found_docs):
                if docname.startswith(prefix):
                    uri = self.env.app.builder.get_relative_uri(self.env.docname, docname)
                    return f'<a class="organ" href="{uri}{"#" + anchor if anchor else ""}"{match[2]}</a>'
        return f'<span class="organ to-come"{match[2]}<i>to come</i></span>'


VIEWS = re.compile(rf'<script type="{re.escape(VIEW)}">(.*?)</script>', re.DOTALL)
SHORT = 200  # characters: what is no longer is written where it is used
UNUSED = ("layout", "tabbable", "tooltip")
FILE = re.compile(r"^(?=/\*! \S+ \*/$)", re.MULTILINE)  # where labcore.widgets.replay.joined put two files together


def lean(models: dict[str, Any], shown: set[str]) -> str:
    """The state of the anywidgets that are shown, as JSON: {"state": {id: model}, "shared": [values that models refer to]}."""
    shared: list[Any] = []

    def once(value: Any) -> Any:
        if len(json.dumps(value)) <= SHORT:
            return value
        parts = [part for part in FILE.split(value) if part] if isinstance(value, str) else [value]
        for part in parts:
            if part not in shared:
                shared.append(part)
        return {"$shared": [shared.index(part) for part in parts]}

    state = {
        name: {
            "model_module": model["model_module"],
            "state": {k: once(v) for k, v in model["state"].items() if k in ("_esm", "_css") or not (k[0] == "_" or k in UNUSED)},
        }
        for name, model in models.items()
        if name in shown and model["model_module"] == "anywidget"
    }
    # inside a script no "<" can end it, nor begin a comment
    return json.dumps({"state": state, "shared": shared}, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def share_widget_state(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Write the state of a page's widgets leanly, and the tables of its replays for whoever runs no scripts."""
    for at, script in enumerate(context.get("script_files", [])):
        attributes = getattr(script, "attributes", {})
        if attributes.get("type") != STATE:
            continue
        models = json.loads(attributes["body"])["state"]
        shown = {json.loads(view)["model_id"] for view in VIEWS.findall(context["body"])}
        body = {"body": lean(models, shown)}
        context["script_files"][at] = type(script)(script.filename, priority=script.priority, **attributes | body)
        tables = {name: _table(model["state"]) for name, model in models.items()}
        context["body"] = VIEWS.sub(partial(_behind, tables), context["body"])


def _behind(tables: dict[str, str], view: re.Match[str]) -> str:
    return view[0] + tables.get(json.loads(view[1])["model_id"], "")


def _table(state: dict[str, Any]) -> str:
    if "says" not in state:  # no replay
        return ""
    return f"<noscript><p>Without JavaScript a replay is a table:</p>{table(state)}</noscript>"


def drop_doubled_scripts(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Keep each inline script once."""
    seen: set[str] = set()
    kept = []
    for script in context.get("script_files", []):
        body = getattr(script, "attributes", {}).get("body")
        if body in seen:
            continue
        if body:
            seen.add(body)
        kept.append(script)
    context["script_files"] = kept


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("capabilities", Capabilities)
    app.add_directive("engine-map", EngineMap)
    app.add_css_file("labbook.css")
    app.connect("html-page-context", drop_doubled_scripts, priority=900)
    app.connect("html-page-context", share_widget_state, priority=901)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
