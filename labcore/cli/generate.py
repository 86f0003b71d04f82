"""Generate text from prompts."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidRequest
from labcore.core.speculative_config import PROPOSERS, SpeculativeConfig
from labcore.engine.llm import LLM, Prompt
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.registry import get_backend
from labcore.kv.block_table import blocks_for
from labcore.loaders.chat import chat_prompt_ids
from labcore.model.llama import LlamaModel
from labcore.model.weights import WEIGHT_FORMS, load_model

RULES = {"top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="+", metavar="PROMPT", help="one or more prompts, completed in one batch")
    add_model_arguments(parser, max_tokens=32)
    parser.add_argument("--chat", action="store_true", help="each prompt is what a user says to the model; print its answer")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before (with --chat)")
    parser.add_argument("--stream", action="store_true", help="print text as it is made (one prompt, no --json)")


def add_model_arguments(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """Which model, on what, and how it chooses tokens."""
    parser.add_argument("--model", default="smollm2", help="a model's name or a path (default: smollm2)")
    parser.add_argument(
        "--weights", choices=WEIGHT_FORMS, default="packed", help="keep the file's block formats, or expand them to float32"
    )
    parser.add_argument("--max-tokens", type=int, default=max_tokens, help="of an answer (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 = greedy (default)")
    parser.add_argument("--top-k", type=int, default=0, help="0 = all (default)")
    for name, default in RULES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default, help="default: %(default)s")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end where this appears; may be repeated")
    parser.add_argument("--speculative", choices=PROPOSERS, default="none", help='guess ahead: "ngram" where text repeats itself')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default=None, help="default: the fastest that this machine runs (see `labcore info`)")
    parser.add_argument("--threads", type=int, default=None, help="of the native backend (default: all cores)")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    rules = {name: getattr(args, name) for name in RULES}
    return SamplingParams(
        max_tokens=args.max_tokens, temperature=args.temperature, top_k=args.top_k, seed=args.seed, stop=args.stop, **rules
    )


def run(args: argparse.Namespace) -> dict[str, Any] | int:
    params = sampling_params(args)
    if args.stream and (args.json or len(args.prompt) > 1):
        raise InvalidRequest("--stream prints one prompt's text as it is made: it takes one prompt, and no --json")
    if args.system is not None and not args.chat:
        raise InvalidRequest("--system is for --chat: a plain prompt is completed as it is")
    for prompt in args.prompt:
        if not prompt:
            raise InvalidRequest("the prompt is empty; expected some text")
    backend = get_backend(args.backend, threads=args.threads)
    model = load_model(args.model, weights=args.weights, backend=backend)
    prompts: list[Prompt] = [said_by_user(model, args.system, prompt) if args.chat else prompt for prompt in args.prompt]
    # a pool that holds as many of them as may run together, at their full length (1: a token that some models begin with)
    lengths = [len(model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt) for prompt in prompts]
    longest = max(lengths) + 1 + args.max_tokens
    together = min(len(prompts), SchedulerConfig().max_num_seqs)
    num_blocks = together * blocks_for(min(longest, model.config.max_model_len), CacheConfig().block_size)
    speculative = SpeculativeConfig(method=args.speculative)
    llm = LLM(model, config=EngineConfig(cache=CacheConfig(num_blocks=num_blocks), speculative=speculative))
    if args.stream:
        print("" if args.chat else args.prompt[0], end="")
        for out in llm.stream(prompts[0], params):
            print(out.text, end="", flush=True)
        print()
        return _tell(out.error)
    completions = llm.generate(prompts, params)
    for prompt, completion in zip(args.prompt, completions, strict=True):
        print(f"{'' if args.chat else prompt}{completion.text}")
    return {
        "model": model.config.name,
        "backend": backend.name,
        "weights": args.weights,
        "completions": [
            {
                "prompt": prompt,
                "text": c.text,
                "token_ids": c.token_ids,
                "num_prompt_tokens": c.num_prompt_tokens,
                "finish_reason": c.finish_reason,
                "error": c.error,
            }
            for prompt, c in zip(args.prompt, completions, strict=True)
        ],
        "exit_code": max(_tell(c.error) for c in completions),
    }


def _tell(error: str) -> int:
    """What went wrong with a request, if anything did, and the exit code for it."""
    if error:
        print(f"labcore: the model failed at this: {error}", file=sys.stderr)
    return int(bool(error))


def said_by_user(model: LlamaModel, system: str | None, text: str) -> list[int]:
    """The prompt of a conversation that begins with what a user says."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    return chat_prompt_ids(model.tokenizer, [*messages, {"role": "user", "content": text}], model=model.config.name)
