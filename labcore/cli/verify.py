"""Set up the laboratory, then run every check: lint, layers, types, the book (a warning fails it), tests and notebooks."""

from __future__ import annotations

import argparse
from typing import Any

from labcore.lab import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> dict[str, Any]:
    return verify.verify()
