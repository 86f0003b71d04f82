"""`labcore chat` with typed lines as its input, and `labcore generate --chat`."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any

import numpy as np
import pytest

from labcore.cli import chat
from labcore.cli.main import main
from labcore.engine.llm import LLM
from labcore.engine.llm_engine import LLMEngine, RequestOutput
from labcore.engine.sampling_params import SamplingParams
from labcore.loaders.chat import chat_prompt_ids
from labcore.loaders.lab import lab_checkpoint
from labcore.model.weights import load_model

Type = Callable[..., tuple[int, list[str], str]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Type:
    """typed(lines, *options) -> exit code, lines of stdout, stderr. The lab model, 12 tokens an answer."""

    def run(lines: list[str], *options: str, stdin: type[io.StringIO] = io.StringIO) -> tuple[int, list[str], str]:
        monkeypatch.setattr("sys.stdin", stdin("".join(f"{line}\n" for line in lines)))
        code = main(["chat", "--model", "lab", "--max-tokens", "12", *options])
        captured = capsys.readouterr()
        return code, answers(captured.out), captured.err

    return run


def answers(out: str) -> list[str]:
    assert out == "" or out.endswith("\n")
    return out.split("\n")[:-1]


def said(*contents: str, max_tokens: int = 12, system: str | None = None, **more: Any) -> str:
    """What the lab model says next, by way of LLM."""
    messages = [{"role": ("user", "assistant")[index % 2], "content": content} for index, content in enumerate(contents)]
    messages = messages if system is None else [{"role": "system", "content": system}, *messages]
    llm = LLM("lab")
    ids = chat_prompt_ids(llm.model.tokenizer, messages)
    return llm.generate(ids, SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "seed": 0} | more))[0].text


def test_each_line_is_a_turn_and_history_is_kept(typed: Type) -> None:
    code, out, err = typed(["hello", "", "  and you?  "])
    first = said("hello")
    assert (code, err) == (0, "")
    assert out == [*first.split("\n"), *said("hello", first, "and you?").split("\n")]


def test_reset_and_exit(typed: Type) -> None:
    code, out, _ = typed(["hello", "/reset", "hello", "/exit", "hello"])
    assert code == 0 and out == said("hello").split("\n") * 2


def test_a_system_message_and_sampling(typed: Type) -> None:
    options = ["--system", "Be brief.", "--temperature", "1.2", "--seed", "7", "--top-k", "50", "--top-p", "0.9"]
    _, out, _ = typed(["hello", "/reset", "hello"], *options)
    more = {"temperature": 1.2, "seed": 7, "top_k": 50, "top_p": 0.9}
    assert out == said("hello", system="Be brief.", **more).split("\n") * 2


def test_the_oldest_exchange_is_forgotten(typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_CONTEXT", 96)
    code, out, err = typed(["a" * 40, "b" * 40, "c" * 40, "d"], "--system", "S")
    assert code == 0
    assert err.count("the context of 96 tokens is full; forgotten: the oldest 1 exchange(s)") == err.count("\n") >= 1
    kept = "\n".join(out)
    first = said("a" * 40, system="S")
    assert kept.startswith(first)


def test_what_is_forgotten_is_not_in_the_next_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_CONTEXT", 96)
    params = SamplingParams(max_tokens=12, temperature=0.0)
    conversation = chat.Conversation(load_model("lab"), "S")
    conversation.history = [{"role": role, "content": content * 20} for content in "abc" for role in ("user", "assistant")]
    ids = conversation.prompt("d", params)
    assert len(ids) + 12 <= 96
    text = conversation.engine.model.tokenizer.decode(ids)
    assert text.startswith("S") and text.endswith("c" * 40 + "d") and "a" not in text
    assert conversation.history[-1]["content"] == "c" * 20


def test_what_was_said_before_is_not_computed_again() -> None:
    conversation = chat.Conversation(load_model("lab"), "Be brief, and always say what you mean by the words that you use.")
    params, stats = SamplingParams(max_tokens=3, temperature=0.0), conversation.engine.cache.prefix_cache.stats
    for _ in conversation.answer("What is a pulley?", params, Event()):
        pass
    known = len(conversation.prompt("And a lever?", params))
    for _ in conversation.answer("And a lever?", params, Event()):
        pass
    first = len(chat_prompt_ids(load_model("lab").tokenizer, [*conversation.system, conversation.history[0]]))
    assert (stats.queries, stats.hits) == (2, 1) and first - 16 <= stats.hit_tokens <= known


def test_a_message_that_cannot_fit_is_refused_and_the_session_goes_on(typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_CONTEXT", 64)
    code, out, err = typed(["x1" * 100, "hello"])
    assert code == 0 and out == said("hello").split("\n")
    assert err == "labcore: the message is 205 tokens with what goes before it; the context is 64\n"


def test_a_message_that_leaves_little_room_gets_a_short_answer(typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_CONTEXT", 64)
    code, out, err = typed(["x1" * 28])
    assert (code, err) == (0, "") and out == said("x1" * 28, max_tokens=3).split("\n")


def interrupting(monkeypatch: pytest.MonkeyPatch, *steps: int) -> list[LLMEngine]:
    """Press Ctrl-C within these steps of the engine."""
    plain, count, engines = LLMEngine.step, iter(range(1, 1000)), []

    def step(self: LLMEngine) -> list[RequestOutput]:
        engines.append(self)
        if next(count) in steps:
            signal.raise_signal(signal.SIGINT)
        return plain(self)

    monkeypatch.setattr(LLMEngine, "step", step)
    return engines


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said(typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    part = said("hello", max_tokens=4)
    expected = said("hello", part, "go on")
    engines = interrupting(monkeypatch, 4)
    handler = signal.getsignal(signal.SIGINT)
    code, out, err = typed(["hello", "go on"])
    assert (code, err) == (0, "") and out == [*part.split("\n"), *expected.split("\n")]
    assert signal.getsignal(signal.SIGINT) is handler
    engine = engines[0]
    engine.check()
    assert not engine.has_unfinished and engine.cache.num_available == engine.config.cache.num_blocks


def test_ctrl_c_twice_leaves(typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LLMEngine.step

    def step(self: LLMEngine) -> list[RequestOutput]:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return plain(self)

    monkeypatch.setattr(LLMEngine, "step", step)
    handler = signal.getsignal(signal.SIGINT)
    assert typed(["hello", "hello"])[0] == 130
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_at_the_prompt_leaves(typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    assert typed([])[0] == 130


def test_a_numerical_error_is_shown_and_the_session_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = lab_checkpoint()
    broken = np.array(checkpoint.tensors["model.embed_tokens.weight"])
    broken[ord("!")] = np.nan  # whoever says "!" breaks the model
    tensors = dict(checkpoint.tensors) | {
        "model.embed_tokens.weight": broken,
        "lm_head.weight": checkpoint.tensors["model.embed_tokens.weight"],
    }
    model = load_model(type(checkpoint)(checkpoint.config, tensors, checkpoint.tokenizer))
    monkeypatch.setattr(chat, "load_model", lambda *_, **__: model)
    monkeypatch.setattr("sys.stdin", io.StringIO("oh!\nhello\n"))
    assert main(["chat", "--max-tokens", "12"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("labcore: the model failed at this: ") and captured.err.count("\n") == 1
    assert answers(captured.out)[-1] == said("hello").split("\n")[-1]


def test_an_error_after_some_words_is_on_a_line_of_its_own(typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, count = LLMEngine.step, iter(range(100))

    def step(self: LLMEngine) -> list[RequestOutput]:
        outputs = plain(self)
        return [replace(out, error="NaN") for out in outputs] if next(count) == 3 else outputs

    monkeypatch.setattr(LLMEngine, "step", step)
    code, out, err = typed(["hello"])
    assert code == 0 and out == said("hello", max_tokens=4).split("\n")
    assert err == "labcore: the model failed at this: NaN\n"


def test_a_terminal_gets_a_prompt(typed: Type) -> None:
    code, out, err = typed(["hello"], stdin=Terminal)
    assert code == 0 and "/reset" in err and "Ctrl-C" in err
    assert out == [*f"> {said('hello')}".split("\n"), "> "]


def test_no_template(monkeypatch: pytest.MonkeyPatch, typed: Type) -> None:
    checkpoint = lab_checkpoint()
    checkpoint.tokenizer.chat_template = None
    monkeypatch.setattr(chat, "load_model", lambda *_, **__: load_model(checkpoint))
    code, out, err = typed(["hello"])
    assert (code, out) == (2, []) and err == "labcore: lab has no chat template; give it plain prompts\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--backend", "cuda"], "unknown backend 'cuda'"),
        (["--system", "\udcff"], "message 0, content: .* lone surrogate"),
        (["--json"], "unrecognized arguments: --json"),
    ],
)
def test_bad_input(options: list[str], says: str, typed: Type) -> None:
    code, out, err = typed(["hello"], *options)
    assert (code, out) == (2, []) and err.count("\n") == 1
    assert re.search(says, err)


def test_piped() -> None:
    """As a process: bytes that are no UTF-8, no end of line at the end, nothing on stdout but answers."""
    argv = [sys.executable, "-m", "labcore", "chat", "--model", "lab", "--max-tokens", "5"]
    env = {**os.environ, "PYTHONUTF8": "1"}
    run = subprocess.run(argv, input=b"\xff\xfe hi\nhello", capture_output=True, env=env)
    assert run.returncode == 0 and run.stderr == b""
    first = said("\ufffd\ufffd hi", max_tokens=5)
    assert run.stdout.decode() == f"{first}\n{said(chr(0xFFFD) * 2 + ' hi', first, 'hello', max_tokens=5)}\n"


# generate --chat


def test_generate_chat_prints_the_answers(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["generate", "--model", "lab", "--chat", "--max-tokens", "12"]
    assert main([*common, "hello", "and you?"]) == 0
    assert capsys.readouterr().out == f"{said('hello')}\n{said('and you?')}\n"
    assert main([*common, "hello", "--stream", "--system", "S"]) == 0
    assert capsys.readouterr().out == f"{said('hello', system='S')}\n"
    assert main([*common, "hello", "--json"]) == 0
    (completion,) = json.loads(capsys.readouterr().out)["completions"]
    assert completion["prompt"] == "hello" and completion["text"] == said("hello")
    assert completion["num_prompt_tokens"] == len(
        chat_prompt_ids(lab_checkpoint().tokenizer, [{"role": "user", "content": "hello"}])
    )


def test_generate_system_without_chat(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", "lab", "hello", "--system", "S"]) == 2
    assert capsys.readouterr().err == "labcore: --system is for --chat: a plain prompt is completed as it is\n"


def test_smollm2_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """In float32: the best two pieces are 0.1 apart here, and int8 activations choose the other (as llama.cpp's do)."""
    assert main(["generate", "--weights", "f32", "--chat", "What is the capital of France?"]) == 0
    assert capsys.readouterr().out == "The capital of France is Paris.\n"
