"""Talk with a model. /reset forgets what was said, /exit or the end of the input leaves, Ctrl-C stops an answer."""

from __future__ import annotations

import argparse
import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

from labcore.cli.generate import add_model_arguments, sampling_params
from labcore.core.config import CacheConfig, EngineConfig
from labcore.core.errors import InvalidRequest, LabError, NumericalError
from labcore.core.speculative_config import SpeculativeConfig
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.registry import get_backend
from labcore.kv.block_table import blocks_for
from labcore.loaders.chat import chat_prompt_ids
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model

JSON = False
MAX_CONTEXT = 4096  # tokens that a conversation keeps at most; the pool is as large (SmolLM2: 46 kB a token, 189 MB)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, max_tokens=256)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")


def run(args: argparse.Namespace) -> int:
    params = sampling_params(args)
    backend = get_backend(args.backend, threads=args.threads)
    conversation = Conversation(load_model(args.model, weights=args.weights, backend=backend), args.system, args.speculative)
    conversation.prompt("Hello", params)  # a model that cannot chat says so before anybody types
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    prompt = ""
    if sys.stdin.isatty():
        _note(__doc__ or "")
        prompt = "> "
    while True:
        try:
            text = input(prompt).strip()
        except EOFError:
            print(end="\n" if prompt else "")
            return 0
        if text == "/exit":
            return 0
        if text == "/reset":
            conversation.reset()
        elif text:
            _turn(conversation, text, params)


def _turn(conversation: Conversation, text: str, params: SamplingParams) -> None:
    end = ""
    try:
        with _interrupts() as stopped:
            for piece in conversation.answer(text, params, stopped):
                print(piece, end="", flush=True)
                end = "\n"  # of an answer that has begun; a refused message has none
    except LabError as error:
        print(end=end, flush=True)
        _note(f"labcore: {error}")
    else:
        print(flush=True)


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _interrupts() -> Iterator[Event]:
    """Ctrl-C sets the event, so that a step of the engine is never torn; pressed again, it interrupts as ever."""
    pressed = Event()

    def press(signum: int, frame: object) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


class Conversation:
    """What was said, and the engine that goes on with it; what no longer fits is forgotten from the oldest end."""

    def __init__(self, model: LlamaModel, system: str | None, speculative: str = "none") -> None:
        self.context = min(model.config.max_model_len, MAX_CONTEXT)
        num_blocks = blocks_for(self.context, CacheConfig().block_size)
        cache = CacheConfig(num_blocks=num_blocks, prefix_cache="radix")  # what was said before is not computed again
        self.engine = LLMEngine(model, EngineConfig(cache=cache, speculative=SpeculativeConfig(method=speculative)))
        self.system = [] if system is None else [{"role": "system", "content": system}]
        self.reset()

    def reset(self) -> None:
        """Forget everything but what the model is told before."""
        self.history: list[dict[str, str]] = []  # a user's message and its answer, in turns

    def prompt(self, text: str, params: SamplingParams) -> list[int]:
        """The ids of all that was said and `text`, with room for an answer: half of the context at the most.

        InvalidRequest: the text alone leaves no room for a single token.
        """
        model, dropped = self.engine.model, 0
        room = min(params.max_tokens, self.context // 2)
        while True:
            messages = [*self.system, *self.history[dropped:], {"role": "user", "content": text}]
            ids = chat_prompt_ids(model.tokenizer, messages, model=model.config.name)
            if dropped == len(self.history) or len(ids) + room <= self.context:
                break
            dropped += 2
        if len(ids) >= self.context:
            raise InvalidRequest(f"the message is {len(ids)} tokens with what goes before it; the context is {self.context}")
        if dropped:
            _note(f"labcore: the context of {self.context} tokens is full; forgotten: the oldest {dropped // 2} exchange(s)")
            del self.history[:dropped]
        return ids

    def answer(self, text: str, params: SamplingParams, stopped: Event) -> Iterator[str]:
        """The answer in whole characters; what was said of it before it was stopped belongs to the conversation."""
        ids = self.prompt(text, params)
        said: list[str] = []
        self.engine.add_request("answer", ids, replace(params, max_tokens=min(params.max_tokens, self.context - len(ids))))
        while self.engine.has_unfinished and not stopped.is_set():
            for out in self.engine.step():
                said.append(out.text)
                yield out.text
                if out.error:
                    raise NumericalError(f"the model failed at this: {out.error}")
        self.engine.abort("answer")
        self.history += [{"role": "user", "content": text}, {"role": "assistant", "content": "".join(said)}]
