"""Versions, backends and why, models, instruction set."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.table import Table

from labcore.core.machine import num_cores
from labcore.kernels.native import runnable_isas
from labcore.kernels.registry import backend_statuses
from labcore.loaders import zoo

_PACKAGES = (
    "labcore",
    "numpy",
    "torch",
    "triton",
    "tokenizers",
    "transformers",
    "jupyterlab",
    "jupyter-book",
    "nbval",
    "papermill",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`info` takes no arguments of its own."""


def run(args: argparse.Namespace) -> dict[str, Any]:
    paths = {name: zoo.cached_path(name) for name in zoo.FILES}
    document: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": num_cores(),
        "isa": runnable_isas(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "backends": [{"name": s.name, "available": s.available, "reason": s.reason} for s in backend_statuses()],
        "models": dict.fromkeys(zoo.SEEDED, "made from a seed, needs no file") | {n: p and str(p) for n, p in paths.items()},
    }
    _print(document)
    return document


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _print(document: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(f"Python {document['python']} on {document['platform']}, {document['cores']} cores")
    console.print("instruction sets of the native kernels: " + (", ".join(document["isa"]) or "none: not built"))
    console.print("packages: " + ", ".join(f"{name} {v or '(missing)'}" for name, v in document["packages"].items()))
    table = Table("backend", "available", "reason", title="Backends, fastest first", title_justify="left")
    for status in document["backends"]:
        table.add_row(status["name"], "yes" if status["available"] else "no", status["reason"])
    console.print(table)
    for name, place in document["models"].items():
        console.print(f"model {name}: {place or f'not fetched; run `labcore fetch {name}`'}", soft_wrap=True)
