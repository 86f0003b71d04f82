"""Run prompts, or a file of requests, through an engine and record every step, as lines of JSON."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from labcore.cli.generate import add_model_arguments, sampling_params
from labcore.core.config import POLICIES, PREFIX_CACHES, CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidTrace
from labcore.core.speculative_config import SpeculativeConfig
from labcore.engine.trace_file import VERSION, trace_writer
from labcore.engine.workload_file import Asked, perform, read_workload
from labcore.kernels.registry import get_backend
from labcore.model.weights import load_model

CACHE, SCHEDULER = CacheConfig(), SchedulerConfig()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="one or more prompts, queued together")
    parser.add_argument("--workload", metavar="FILE", help="requests as lines of JSON, in the place of prompts")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where the trace goes")
    add_model_arguments(parser, max_tokens=32)
    parser.add_argument("--num-blocks", type=int, default=CACHE.num_blocks, help="blocks of the KV pool (default: %(default)s)")
    parser.add_argument("--block-size", type=int, default=CACHE.block_size, help="tokens in a block (default: %(default)s)")
    parser.add_argument("--prefix-cache", choices=PREFIX_CACHES, default=CACHE.prefix_cache, help="default: %(default)s")
    parser.add_argument("--max-num-batched-tokens", type=int, default=SCHEDULER.max_num_batched_tokens, help="tokens a step")
    parser.add_argument("--max-num-seqs", type=int, default=SCHEDULER.max_num_seqs, help="requests that run at a time")
    parser.add_argument("--max-chunk-tokens", type=int, default=None, help="tokens of one request a step (default: no limit)")
    parser.add_argument(
        "--policy", choices=POLICIES, default=SCHEDULER.policy, help="who is admitted next (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    config = EngineConfig(
        cache=CacheConfig(num_blocks=args.num_blocks, block_size=args.block_size, prefix_cache=args.prefix_cache),
        scheduler=SchedulerConfig(
            max_num_batched_tokens=args.max_num_batched_tokens,
            max_num_seqs=args.max_num_seqs,
            max_chunk_tokens=args.max_chunk_tokens,
            policy=args.policy,
        ),
        speculative=SpeculativeConfig(method=args.speculative),
    )
    if bool(args.prompt) == bool(args.workload):
        raise InvalidTrace("expected prompts, or --workload FILE")
    params = sampling_params(args)
    asked = (
        read_workload(args.workload)
        if args.workload
        else [Asked(request_id=f"request-{i}", prompt=prompt, params=params) for i, prompt in enumerate(args.prompt)]
    )
    model = load_model(args.model, weights=args.weights, backend=get_backend(args.backend, threads=args.threads))
    steps = perform(model, config, asked)
    first = next(steps)  # whatever arrives first has been accepted: a file may be touched
    try:
        if os.path.isfile(args.output):  # it may be the model that is mapped
            raise FileExistsError("it exists; remove it, or choose another name")
        file = open(args.output, "w", encoding="utf-8", errors="replace", newline="\n")  # noqa: SIM115
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        raise InvalidTrace(f"{args.output}: cannot be written: {error}") from None
    records = [first]
    with file:
        write = trace_writer(file, model, config)
        write(first)
        for record in steps:
            records.append(record)
            write(record)
    errors = {share.request_id: share.error for record in records for share in record.scheduled if share.error}
    for request_id, said in errors.items():
        print(f"labcore: {request_id}: the model failed at this: {said}", file=sys.stderr)
    summary = {
        "file": args.output,
        "version": VERSION,
        "model": model.config.name,
        "requests": len(asked),
        "steps": len(records),
        "tokens": sum(record.num_tokens for record in records),
        "preemptions": sum(len(record.preempted) for record in records),
        "hit_tokens": sum(record.hit_tokens for record in records),
        "errors": errors,
        "exit_code": int(bool(errors)),
    }
    print("{file}: {requests} requests, {steps} steps, {tokens} tokens computed, {preemptions} preemptions".format(**summary))
    return summary
