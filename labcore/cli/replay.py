"""Print a recorded run step by step, or run it again and see whether the engine decides the same."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

from labcore.core.errors import InvalidTrace
from labcore.core.trace import StepRecord
from labcore.engine.trace_file import read_trace
from labcore.engine.workload_file import asked_in, first_difference, perform
from labcore.kernels.registry import get_backend
from labcore.loaders import zoo
from labcore.model.weights import WEIGHT_FORMS, load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what `labcore trace` wrote")
    parser.add_argument("--execute", action="store_true", help="run it again; exit with 1 if anything is decided otherwise")
    parser.add_argument("--model", default=None, help="with --execute: the model's name or path (default: the trace's)")
    parser.add_argument("--weights", choices=WEIGHT_FORMS, default="packed", help="with --execute (default: packed)")
    parser.add_argument("--backend", default=None, help="with --execute: the backend")
    parser.add_argument("--threads", type=int, default=None, help="with --execute: of the native backend")


def run(args: argparse.Namespace) -> dict[str, Any]:
    trace = read_trace(args.file)
    summary: dict[str, Any] = {
        "file": args.file, "model": trace.model, "requests": len(trace.arrivals), "steps": len(trace.steps), "exit_code": 0,
    }  # fmt: skip
    if not args.execute:
        for step in trace.steps:
            print(told(step))
        return summary
    name = args.model or (trace.model if trace.model in zoo.SEEDED else "smollm2")
    model = load_model(name, weights=args.weights, backend=get_backend(args.backend, threads=args.threads))
    if model.config.name != trace.model:
        raise InvalidTrace(f"{args.file} was recorded on {trace.model!r}, and {name} is {model.config.name!r}; give --model")
    again = list(islice(perform(model, trace.config, asked_in(trace), len(trace.steps)), len(trace.steps)))  # it may end early
    difference = first_difference(trace.steps, again)
    print(difference or f"{len(again)} steps: every decision and every token the same")
    return summary | {"same": not difference, "difference": difference, "exit_code": int(bool(difference))}


def told(step: StepRecord) -> str:
    """A step in a line: who ran how many tokens, what happened to others, how the pool stands."""
    parts = [f"{share.request_id} +{share.num_tokens}" for share in step.scheduled] or [step.idle_reason]
    happened = {
        "arrived": [arrival.request_id for arrival in step.arrived],
        "preempted": step.preempted,
        "finished": step.finished,
        "aborted": step.aborted,
        "expired": step.expired,
        "copied": [f"{old}>{new}" for old, new in step.copied],
        "hit": [f"{step.hit_tokens} tokens"] if step.hit_tokens else [],
        "evicted": [f"{len(step.evicted)} blocks"] if step.evicted else [],
    }
    more = "".join(f"; {what} {', '.join(names)}" for what, names in happened.items() if names)
    pool = f"{step.used_blocks} used, {step.cached_blocks} cached, {step.free_blocks} free"
    return f"{step.step:>5}  {', '.join(parts)}{more}  [{pool}]"
