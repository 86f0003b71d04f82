"""Every exercise is a question, a starter that its check turns down, and a folded solution that the same check accepts.

The outputs read here are those stored in the notebook; `pytest --nbval` proves that running the cells gives them again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))


def cells_of(path: Path) -> dict[str, Any]:
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells if cell.id.startswith("ex-")}


EXERCISES = [
    (path, name) for path in NOTEBOOKS for name in sorted({re.sub("-(try|solution)$", "", cell_id) for cell_id in cells_of(path)})
]


def verdict(cell: Any) -> tuple[str, str]:
    """The check that a cell ends with, and the sentence it gave."""
    match = re.fullmatch(r"(check_\w+)\(\w+\)", cell.source.splitlines()[-1])
    assert match, f"{cell.id} does not end in `check_...(function)`"
    [result] = [output for output in cell.outputs if output.output_type == "execute_result"]
    return match[1], result.data["text/plain"]


def test_each_chapter_has_exercises() -> None:
    assert {path for path, _ in EXERCISES} == set(NOTEBOOKS)


@pytest.mark.parametrize(("path", "name"), EXERCISES, ids=lambda value: getattr(value, "stem", value))
def test_the_starter_fails_its_check_and_the_solution_passes_it(path: Path, name: str) -> None:
    cells = cells_of(path)
    assert cells[name].cell_type == "markdown"
    check, sentence = verdict(cells[f"{name}-try"])
    assert sentence.startswith("not answered yet")
    same_check, sentence = verdict(cells[f"{name}-solution"])
    assert same_check == check and sentence.startswith("right")
