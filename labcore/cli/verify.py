"""Set up the laboratory, then run every check: lint, layers, types, the book (a warning fails it), tests and notebooks."""

from __future__ import annotations

import argparse

from labcore.lab import verify

JSON = False  # its output ends in pytest's own closing line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    return verify.verify()
