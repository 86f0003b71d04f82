"""Measure `model` beside its floor, `peers` beside others, `quality` of packed weights, `attention`, `scheduling`, `sampling`."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from labcore.bench import report
from labcore.bench.attention import bench_attention
from labcore.bench.harness import exit_code
from labcore.bench.model import bench_model
from labcore.bench.peers.compare import bench_peers
from labcore.bench.quality import bench_quality
from labcore.bench.sampling import bench_sampling
from labcore.bench.scheduling import bench_scheduling
from labcore.model.weights import WEIGHT_FORMS

WHAT = ("model", "peers", "quality", "attention", "scheduling", "sampling")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("model", nargs="?", default="smollm2", help="a model's name or a path (default: smollm2)")
    parser.add_argument("--weights", choices=WEIGHT_FORMS, default="packed", help="of `model`")
    parser.add_argument("--threads", type=int, default=None, help="default: all cores")
    parser.add_argument("--rounds", type=int, default=5, help="turns that each contender gets (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")


def run(args: argparse.Namespace) -> dict[str, Any]:
    bench, show = {
        "model": (partial(bench_model, args.model, weights=args.weights, rounds=args.rounds), report.print_model),
        "peers": (partial(bench_peers, args.model, rounds=args.rounds, say=report.say), report.print_peers),
        "quality": (partial(bench_quality, args.model), report.print_quality),
        "attention": (partial(bench_attention, rounds=args.rounds), report.print_attention),
        "scheduling": (partial(bench_scheduling, args.model, rounds=args.rounds), report.print_scheduling),
        "sampling": (partial(bench_sampling, args.model, rounds=args.rounds), report.print_sampling),
    }[args.what]
    document = bench(threads=args.threads)
    show(document)
    return document | {"exit_code": exit_code(document, args.check)}
