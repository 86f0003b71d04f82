"""A conversation as the text that a model was trained on: the checkpoint's chat template, rendered.

A template is a program that came with somebody's weights: it runs in `template_sandbox.py`, within its bounds on work
and memory, and gives the text that transformers gives.

Special tokens are recognised wherever they stand in that text, as in transformers: a user who writes `<|im_end|>` ends
a turn. Whoever serves strangers must refuse such content, or take it out.

Limits: content is text; no tools, no documents; of the special tokens, only `bos_token` and `eos_token` have names.

    >>> render_chat(LabTokenizer(), [{"role": "user", "content": "Hi"}])
    '<|im_start|><|user|>Hi<|im_end|><|im_start|><|assistant|>'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from labcore.core.errors import InvalidCheckpoint, InvalidRequest
from labcore.loaders.template_sandbox import Sandbox
from labcore.loaders.tokenizer import Tokenizer, utf8

Messages = Sequence[dict[str, str]]


def render_chat(tokenizer: Tokenizer, messages: Messages, *, add_generation_prompt: bool = True, model: str = "the model") -> str:
    """The text of a conversation, up to where the assistant's answer begins.

    messages: {"role": ..., "content": ...} each. model: its name, for errors.
    Raises InvalidRequest: messages of another form, no template, or one that refuses these messages or does too much;
    InvalidCheckpoint: a template that is no Jinja, or needs what is not supported.
    """
    if tokenizer.chat_template is None:
        raise InvalidRequest(f"{model} has no chat template; give it plain prompts")
    variables: dict[str, Any] = {"messages": _checked(messages), "add_generation_prompt": add_generation_prompt}
    for name, token_id in (("bos_token", tokenizer.bos_token_id), ("eos_token", tokenizer.eos_token_id)):
        if token_id is not None:
            variables[name] = tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")
    sandbox = Sandbox()
    try:
        template = sandbox.compiled(tokenizer.chat_template)
    except Exception as error:
        raise InvalidCheckpoint(f"the chat template of {model} cannot be used: {_reason(error)}") from None
    pieces: list[str] = []
    length = 0
    try:
        for piece in template.generate(tools=None, documents=None, **variables):
            length += len(piece)
            sandbox.expect_text(length)
            pieces.append(piece)
        return "".join(pieces)
    except Exception as error:
        raise InvalidRequest(f"the chat template of {model} does not render these messages: {_reason(error)}") from None


def chat_prompt_ids(
    tokenizer: Tokenizer, messages: Messages, *, add_generation_prompt: bool = True, model: str = "the model"
) -> list[int]:
    """The ids of a conversation. What the model begins with, the template has written: `add_bos` is for plain prompts."""
    return tokenizer.encode(render_chat(tokenizer, messages, add_generation_prompt=add_generation_prompt, model=model))


def _checked(messages: Messages) -> list[dict[str, str]]:
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequest(f"messages is {messages!r:.60}; expected a list of at least one")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            raise InvalidRequest(f"message {index} is {message!r:.60}; expected a dict of role and content")
        for key, value in message.items():
            try:
                utf8(value)
            except InvalidRequest as error:
                raise InvalidRequest(f"message {index}, {key}: {error}") from None
    return [{key: str(message[key]) for key in ("role", "content")} for message in messages]


def _reason(error: Exception) -> str:
    kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split()):.300}"
