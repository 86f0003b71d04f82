"""Set up the laboratory and start it: JupyterLab and the rendered book."""

from __future__ import annotations

import argparse

from labcore.lab import up

JSON = False  # runs until it is stopped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("--port", type=int, help="port of JupyterLab (default: 8888, or a free one)")


def run(args: argparse.Namespace) -> int:
    return up.up(open_browser=not args.no_browser, port=args.port)
