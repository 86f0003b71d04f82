"""The book's own Sphinx extension: the table of capabilities, the map of the engine, and one cure.

- `{capabilities}` prints labcore.lab.capabilities, so that the page cannot drift from what the tests hold true.
- `{engine-map}` takes book/_static/engine.html and links each organ to the first of its pages that exists; an organ
  with none is shown as "to come".
- sphinx-thebe writes the same inline script twice on every page, an error in the browser's console: doubles are dropped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from labcore.lab import capabilities

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
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
