"""Keep an engine on the lab model under random arrivals, aborts, deadlines, forks and priorities, checking everything."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from math import inf
from typing import Any

from labcore.bench.stamp import sentence, stamp
from labcore.core.errors import InvalidConfig
from labcore.kernels.registry import get_backend
from labcore.lab.soak import Violation, soak
from labcore.model.weights import load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: %(default)s)")
    parser.add_argument("--workloads", type=int, default=None, help="how many, instead of how long")
    parser.add_argument("--seed", type=int, default=0, help="of the first workload; the next one has the next (default: 0)")
    parser.add_argument("--threads", type=int, default=None, help="default: all cores")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if not 0 < args.minutes < inf or args.seed < 0 or (args.workloads is not None and args.workloads < 1):
        raise InvalidConfig("expected minutes above 0, a seed of 0 or more, and one workload or more")
    backend = get_backend(threads=args.threads)
    model = load_model("lab", backend=backend if backend.exact else "reference")
    minutes = args.minutes if args.workloads is None else inf
    try:
        counts = asdict(soak(model, args.seed, args.workloads, minutes))
    except Violation as error:
        print(f"violation in {error}")
        return {"stamp": stamp(), "violation": str(error), "exit_code": 1}
    print(sentence(stamp()))
    for name, value in counts.items():
        print(f"{name.replace('_', ' '):>28}: {value:,}")
    print("no violation")
    return {"stamp": stamp(), **counts, "exit_code": 0}
