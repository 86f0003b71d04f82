"""Run prompts through an engine and record every step, as lines of JSON."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from labcore.cli.generate import add_model_arguments, sampling_params
from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidTrace
from labcore.core.trace import StepRecord
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.trace_file import VERSION, trace_writer
from labcore.kernels.registry import get_backend
from labcore.model.weights import load_model

CACHE, SCHEDULER = CacheConfig(), SchedulerConfig()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="+", metavar="PROMPT", help="one or more prompts, queued together")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where the trace goes")
    add_model_arguments(parser, max_tokens=32)
    parser.add_argument("--num-blocks", type=int, default=CACHE.num_blocks, help="blocks of the KV pool (default: %(default)s)")
    parser.add_argument("--block-size", type=int, default=CACHE.block_size, help="tokens in a block (default: %(default)s)")
    parser.add_argument("--max-num-batched-tokens", type=int, default=SCHEDULER.max_num_batched_tokens, help="tokens a step")
    parser.add_argument("--max-num-seqs", type=int, default=SCHEDULER.max_num_seqs, help="requests that run at a time")
    parser.add_argument("--max-chunk-tokens", type=int, default=None, help="tokens of one request a step (default: no limit)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    config = EngineConfig(
        cache=CacheConfig(num_blocks=args.num_blocks, block_size=args.block_size),
        scheduler=SchedulerConfig(
            max_num_batched_tokens=args.max_num_batched_tokens,
            max_num_seqs=args.max_num_seqs,
            max_chunk_tokens=args.max_chunk_tokens,
        ),
    )
    params = sampling_params(args)
    records: list[StepRecord] = []
    model = load_model(args.model, weights=args.weights, backend=get_backend(args.backend, threads=args.threads))
    engine = LLMEngine(model, config, records.append)
    for i, prompt in enumerate(args.prompt):  # all are accepted before a file is touched
        engine.add_request(f"request-{i}", prompt, params)
    try:
        if os.path.isfile(args.output):  # it may be the model that is mapped
            raise FileExistsError("it exists; remove it, or choose another name")
        file = open(args.output, "w", encoding="utf-8", errors="replace", newline="\n")  # noqa: SIM115
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        raise InvalidTrace(f"{args.output}: cannot be written: {error}") from None
    errors: dict[str, str] = {}
    with file:
        write = trace_writer(file, engine)
        while engine.has_unfinished:
            errors |= {out.request_id: out.error for out in engine.step() if out.error}
            write(records[-1])
    for request_id, said in errors.items():
        print(f"labcore: {request_id}: the model failed at this: {said}", file=sys.stderr)
    summary = {
        "file": args.output,
        "version": VERSION,
        "model": engine.model.config.name,
        "requests": len(args.prompt),
        "steps": len(records),
        "tokens": sum(record.num_tokens for record in records),
        "preemptions": sum(len(record.preempted) for record in records),
        "errors": errors,
        "exit_code": int(bool(errors)),
    }
    print("{file}: {requests} requests, {steps} steps, {tokens} tokens computed, {preemptions} preemptions".format(**summary))
    return summary
