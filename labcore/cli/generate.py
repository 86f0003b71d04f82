"""Generate text from prompts."""

from __future__ import annotations

import argparse
from typing import Any

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidRequest
from labcore.engine.llm import LLM
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.registry import get_backend
from labcore.kv.block_table import blocks_for
from labcore.model.weights import WEIGHT_FORMS, load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="+", metavar="PROMPT", help="one or more prompts, completed in one batch")
    parser.add_argument("--model", default="smollm2", help="a model's name or a path (default: smollm2)")
    parser.add_argument(
        "--weights", choices=WEIGHT_FORMS, default="packed", help="keep the file's block formats, or expand them to float32"
    )
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 = greedy (default)")
    parser.add_argument("--top-k", type=int, default=0, help="0 = all (default)")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default=None, help="default: the fastest that this machine runs (see `labcore info`)")
    parser.add_argument("--threads", type=int, default=None, help="of the native backend (default: all cores)")
    parser.add_argument("--stream", action="store_true", help="print text as it is made (one prompt, no --json)")


def run(args: argparse.Namespace) -> dict[str, Any] | int:
    params = SamplingParams(
        max_tokens=args.max_tokens, temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed
    )
    if args.stream and (args.json or len(args.prompt) > 1):
        raise InvalidRequest("--stream prints one prompt's text as it is made: it takes one prompt, and no --json")
    for prompt in args.prompt:
        if not prompt:
            raise InvalidRequest("the prompt is empty; expected some text")
    backend = get_backend(args.backend, threads=args.threads)
    model = load_model(args.model, weights=args.weights, backend=backend)
    # a pool that holds as many of them as may run together, at their full length (1: a token that some models begin with)
    longest = max(len(model.tokenizer.encode(prompt)) for prompt in args.prompt) + 1 + args.max_tokens
    together = min(len(args.prompt), SchedulerConfig().max_num_seqs)
    num_blocks = together * blocks_for(min(longest, model.config.max_model_len), CacheConfig().block_size)
    llm = LLM(model, config=EngineConfig(cache=CacheConfig(num_blocks=num_blocks)))
    if args.stream:
        print(args.prompt[0], end="")
        for out in llm.stream(args.prompt[0], params):
            print(out.text, end="", flush=True)
        print()
        return 0
    completions = llm.generate(args.prompt, params)
    for completion in completions:
        print(f"{completion.prompt}{completion.text}")
    return {
        "model": model.config.name,
        "backend": backend.name,
        "weights": args.weights,
        "completions": [
            {
                "prompt": c.prompt,
                "text": c.text,
                "token_ids": c.token_ids,
                "num_prompt_tokens": c.num_prompt_tokens,
                "finish_reason": c.finish_reason,
                "error": c.error,
            }
            for c in completions
        ],
    }
