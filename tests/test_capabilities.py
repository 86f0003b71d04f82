"""The table of capabilities tells the truth: each symbol imports, each test it names exists."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from labcore.lab.capabilities import CAPABILITIES, LEVELS, Capability

ROOT = Path(__file__).resolve().parents[1]
ROWS = [pytest.param(row, id=row.name) for row in CAPABILITIES]


def names_in(path: Path) -> set[str]:
    """Functions, classes and assigned names of a module, by its syntax alone."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("row", ROWS)
def test_the_symbol_imports(row: Capability) -> None:
    module, _, name = row.symbol.partition(":")
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("row", ROWS)
def test_the_test_exists_and_pytest_would_collect_it(row: Capability) -> None:
    path, _, name = row.test.partition("::")
    assert Path(path).name.startswith("test_") and name.lower().startswith("test")
    assert name in names_in(ROOT / path)


def test_levels_and_names() -> None:
    assert {row.level for row in CAPABILITIES} <= set(LEVELS)
    assert len({row.name for row in CAPABILITIES}) == len(CAPABILITIES)
