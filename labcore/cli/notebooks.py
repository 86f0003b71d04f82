"""Execute the book's notebooks in place, or renew the scripts of their stored replays (all, or 00, 00_whole_engine, a path)."""

from __future__ import annotations

import argparse
from typing import Any

from labcore.lab import notebooks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["run", "renew"],
        help="run: from a fresh kernel each, outputs stored; renew: only the stored .js and .css",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a number, a name or a path (default: all)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    every = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
    paths = [notebooks.find(name) for name in args.names] or every  # all names are known before one runs
    if args.action == "renew":
        document = [{"name": path.stem, "changed": notebooks.renew(path)} for path in paths]
        print(*(f"{entry['name']}: {'changed' if entry['changed'] else 'as it was'}" for entry in document), sep="\n")
        return {"notebooks": document}
    document = []
    for path in paths:
        done = notebooks.execute(path)
        result = "changed" if done.changed else "as it was"
        print(f"{path.stem}: {done.num_cells} cells in {done.seconds:.1f} s, {result}", flush=True)
        document.append({"name": path.stem, "cells": done.num_cells, "seconds": round(done.seconds, 2), "changed": done.changed})
    return {"notebooks": document}
