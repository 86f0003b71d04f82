"""Fetch a model into the cache and verify it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from labcore.loaders import zoo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2", help=f"one of: {', '.join(zoo.known_models())} (default: smollm2)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if args.model in zoo.SEEDED:
        print(f"{args.model} is made from a seed: there is nothing to fetch")
        return {"model": args.model, "path": None, "bytes": 0, "sha256": None}
    meter = Meter()
    try:
        path = zoo.fetch(args.model, meter)
    finally:
        meter.close()
    print(path)
    file = zoo.FILES[args.model]
    return {"model": args.model, "path": str(path), "bytes": file.size, "sha256": file.sha256}


class Meter:
    """Progress on stderr: one line rewritten on a terminal, one line a stage elsewhere. Standard library only."""

    def __init__(self) -> None:
        self.stage = ""
        self.shown = -1
        self.live = sys.stderr.isatty()

    def __call__(self, stage: str, done: int, total: int) -> None:
        percent = 100 * done // max(total, 1)
        if not self.live:
            if stage != self.stage:
                print(f"{stage} ({total / 1e6:.0f} MB)", file=sys.stderr, flush=True)
        elif (stage, percent) != (self.stage, self.shown):
            self.close()
            print(f"{stage} {percent:3d} % of {total / 1e6:.0f} MB", end="", file=sys.stderr, flush=True)
        self.stage, self.shown = stage, percent

    def close(self) -> None:
        """Clear the line, so that what follows starts on a fresh one."""
        if self.live and self.shown >= 0:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
