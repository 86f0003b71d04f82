"""Rules for every notebook, checked on the file alone, before a kernel starts.

They are what makes `pytest --nbval` strict and steady on other machines, and a chapter a chapter.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labcore.lab.notebooks import STATE, VIEW

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECTIONS = ("Why", "Predict", "Build", "Check", "Measure", "Where it loses", "Break it", "Exercises", "Read next")
MOST_LINES, MOST_COLUMNS = 12, 92  # of a cell; as wide as the page
IGNORED = "nbval-ignore-output"

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code(path: Path) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def texts(cell: Any) -> str:
    """All that a cell put out as text."""
    parts = [output.get("text", "") for output in cell.outputs]
    parts += [str(value) for output in cell.outputs for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(parts)


def faults(path: Path, wrong: Any) -> list[str]:
    return [cell.id for cell in code(path) if wrong(cell)]


def test_it_is_valid_and_was_run_in_order(path: Path) -> None:
    """A cell that never ran has no output to compare: nbval would check nothing."""
    notebook = read(path)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code(path)] == list(range(1, len(code(path)) + 1))
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.language_info == {"name": "python"}


def test_nothing_went_wrong(path: Path) -> None:
    def wrong(cell: Any) -> bool:
        kinds = {output.get("name", output.output_type) for output in cell.outputs}
        return "stderr" in kinds or ("error" in kinds and "raises-exception" not in tags(cell))

    assert faults(path, wrong) == []


def test_cells_are_small_and_fit_the_page(path: Path) -> None:
    assert faults(path, lambda cell: len(cell.source.splitlines()) > MOST_LINES) == []
    assert faults(path, lambda cell: max(map(len, cell.source.splitlines())) > MOST_COLUMNS) == []


def test_no_trap_of_nbval(path: Path) -> None:
    """A closing `;` counts in JupyterLab only; Output widgets and what prints past Python are not seen."""
    assert faults(path, lambda cell: cell.source.rstrip().endswith(";")) == []
    trap = re.compile(r"\binteract(ive|ive_output|_manual)?\b|\bOutput\(|%%?time|\bsubprocess\.(check_)?call|os\.system|^!", re.M)
    assert faults(path, lambda cell: IGNORED not in tags(cell) and trap.search(cell.source)) == []


def test_outputs_are_the_same_everywhere(path: Path) -> None:
    """Times, addresses and backends stand in cells whose output is not compared; paths of a machine stand nowhere."""
    steady = re.compile(r"\b0x[0-9a-f]{6,}|\d ?(ns|us|µs|μs|ms)\b|\d s\b|\bnative\b|\bavx")
    assert faults(path, lambda cell: IGNORED not in tags(cell) and steady.search(texts(cell))) == []
    machine = re.compile(r"(?<![\w.])/(home|root|tmp|Users|mnt|opt|work)/|[A-Z]:\\\\")
    assert not machine.search(path.read_text(encoding="utf-8"))


def test_what_is_not_compared_is_little(path: Path) -> None:
    ignored = faults(path, lambda cell: IGNORED in tags(cell))
    assert len(ignored) < len(code(path)) / 4
    assert faults(path, lambda cell: "nbval-skip" in tags(cell)) == []


def test_what_needs_no_engine_runs_without_a_model(path: Path, tmp_path: Path) -> None:
    """Cells that are not tagged run on the scheduler, the caches and an oracle alone, in their order."""
    source = "\n\n".join(cell.source for cell in code(path) if "needs-engine" not in tags(cell))
    environment = {**os.environ, "LABCORE_CACHE": str(tmp_path), "MPLBACKEND": "agg"}
    argv = [sys.executable, "-W", "ignore:FigureCanvasAgg", "-c", source]
    result = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")


def test_it_has_one_parameters_cell(path: Path) -> None:
    assert len(faults(path, lambda cell: "parameters" in tags(cell))) == 1


def test_pictures_have_a_description_and_say_how_to_read_them(path: Path) -> None:
    cells = read(path).cells
    for at, cell in enumerate(cells):
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
            assert cell.metadata.get("mystnb", {}).get("image", {}).get("alt"), cell.id
            assert any("*How to read it:*" in after.source for after in cells[at + 1 : at + 3]), cell.id


def replays(path: Path) -> dict[str, Any]:
    """The stored state of each replay, by its model."""
    models = read(path).metadata.get("widgets", {}).get(STATE, {"state": {}})["state"]
    return {name: model["state"] for name, model in models.items() if "says" in model["state"]}


def test_replays_are_told_about_and_have_an_address(path: Path) -> None:
    cells, states = read(path).cells, replays(path)
    shown = [(at, output.data[VIEW]["model_id"]) for at, cell in enumerate(cells) for output in cell.get("outputs", [])
             if VIEW in output.get("data", {})]  # fmt: skip
    assert {model for _, model in shown} == set(states)
    for at, _ in shown:
        assert any("*How to read it:*" in after.source for after in cells[at + 1 : at + 3]), cells[at].id
    links = [state["link"] for state in states.values()]
    assert len(links) == len(set(links))


def test_stored_replays_are_small_and_up_to_date(path: Path) -> None:
    """nbval compares a replay's table; here its sources are compared with those that it would have now."""
    for state in replays(path).values():
        module, _, kind = state["_anywidget_id"].rpartition(".")
        current = getattr(importlib.import_module(module), kind)
        stale = f"renew(find({path.stem!r})) of labcore.lab.notebooks, or run it where the data of {kind} changed too"
        assert (state["_esm"], state["_css"]) == (current._esm, current._css), stale
        facts = {name: value for name, value in state.items() if name not in ("_esm", "_css")}
        assert len(json.dumps(facts)) < 40_000, kind


def test_solutions_are_folded_in_the_page_and_in_jupyterlab(path: Path) -> None:
    def folded(cell: Any) -> bool:
        return "hide-cell" in tags(cell) and cell.metadata.get("jupyter", {}).get("source_hidden") is True

    solutions = faults(path, lambda cell: cell.id.endswith("solution"))
    assert solutions and faults(path, folded) == solutions


def test_it_is_a_chapter(path: Path) -> None:
    """Minutes, prerequisites and what it is for; then the sections in their order."""
    cells = read(path).cells
    head = cells[0].source
    assert head.startswith("# ") and re.search(r"\d+ minutes", head) and "You need" in head and "Afterwards you can" in head
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    titles = re.findall(r"^## (.*)", prose, re.M)
    found = [section for title in titles for section in SECTIONS if title.startswith(section)]
    assert found == list(SECTIONS)
