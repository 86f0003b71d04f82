"""Bookkeeping imports nothing but the standard library: it starts at once, and could run in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import labcore

MODULES = [
    "labcore",
    "labcore.core.checks",
    "labcore.core.config",
    "labcore.core.errors",
    "labcore.core.machine",
    "labcore.core.operators",
    "labcore.core.trace",
    "labcore.engine.sampling_params",
    "labcore.engine.scheduler",
    "labcore.engine.sequence",
    "labcore.kv.block_allocator",
    "labcore.kv.block_table",
    "labcore.kv.paged_cache",
    "labcore.kv.prefix_cache",
    "labcore.loaders.zoo",
]


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_the_standard_library_only(module: str) -> None:
    """`python -S` has no site-packages: an import of anything installed fails."""
    root = str(Path(labcore.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {root!r}); import {module}; print({module}.__name__)"
    run = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == module
