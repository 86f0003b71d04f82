"""Every operator on every backend: error, rate, share of this machine's ceilings; and the kernels' goals."""

from __future__ import annotations

import argparse
from typing import Any

from labcore.bench.harness import exit_code
from labcore.bench.kernels import SIZES, bench_kernels
from labcore.bench.report import print_kernels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operator", metavar="NAME", help="only this one")
    parser.add_argument("--size", choices=SIZES, default="small", help="512 x 512 (small, default) or 4096 x 4096 (large)")
    parser.add_argument("--threads", type=int, default=None, help="default: all cores")
    parser.add_argument("--rounds", type=int, default=5, help="turns that each contender gets (default: %(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="draw the roofline with the operators (needs matplotlib)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")


def run(args: argparse.Namespace) -> dict[str, Any]:
    document = bench_kernels(size=args.size, operator=args.operator, threads=args.threads, rounds=args.rounds)
    print_kernels(document)
    if args.plot:
        from labcore.bench.roofline import draw, points_of

        draw(document["ceilings"], points_of(document)).savefig(args.plot)
    return document | {"exit_code": exit_code(document, args.check)}
