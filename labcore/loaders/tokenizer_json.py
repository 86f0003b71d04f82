"""Hugging Face's `tokenizer.json` in and out, and the small files beside it that say which tokens begin and end a text.

`tokenizer_config.json` names the tokens; `generation_config.json`, or without it `config.json`, lists ids that end a
text, and all of these end one. Whether a prompt begins with the first token is what tokenizer.json's post-processor
does; as in transformers, `add_bos_token` has no say beside that file.

A token's bytes follow the file's own decoder: byte-level (GPT-2), or SentencePiece's way ("▁" is a space, "<0x0A>" a
byte). A completion goes on from a text, so a space at its start is kept: the decoder's `Strip` is for whole texts.

Limits: what a post-processor adds must be one token in front. Byte tokens that are no UTF-8 become U+FFFD as in
`tokenizer.py`, one for each maximal part, where the library writes one for each byte. `tokenizer_class` has no say: for
some classes (LlamaTokenizer, and Qwen2's by model_type) transformers 5 takes vocabulary and merges out of the file and
puts its own rules in the place of the file's. Here, as in `tokenizers` and PreTrainedTokenizerFast, the file is followed;
what may differ is spaces, at the start of a text and behind special tokens ("a</s>b", " x").

    >>> tokenizer = read_tokenizer_json(Path("SmolLM2-135M-Instruct"), vocab_size=49152)
    >>> tokenizer.eos_token_ids
    frozenset({2})
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Pipeline

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.bpe import (
    CONTROL,
    NORMAL,
    PRE_TOKENIZERS,
    UNUSED,
    USER_DEFINED,
    PipelineTokenizer,
    as_pipeline,
    byte_level,
    library_faults_as,
    padding_name,
)
from labcore.loaders.fields import Fields, json_object, read_bounded, read_json, write_json
from labcore.loaders.tokenizer import Tokenizer, end_token_ids

MAX_TOKENIZER_BYTES = 128 << 20  # Gemma 3's, of 262,144 tokens, has 33 MB
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
SENTENCEPIECE_DECODERS = re.compile("(ByteFallback )?Metaspace|(Replace )*Replace( ByteFallback)?( Fuse( Strip)?)?")
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


def read_tokenizer_json(folder: Path, vocab_size: int) -> PipelineTokenizer:
    """The tokenizer of a folder, for an embedding of `vocab_size` rows. InvalidCheckpoint names the file at fault."""
    path = folder / "tokenizer.json"
    pipeline = _read_pipeline(path)
    to_bytes = _spelling(pipeline, path)
    front = _token_in_front(pipeline, path)
    settings, generation, config = (
        _settings(folder / f"{name}.json") for name in ("tokenizer_config", "generation_config", "config")
    )
    bos, eos = (_token_id(settings, key, pipeline) for key in ("bos_token", "eos_token"))
    for name in (_token_name(settings, key) for key in NAMED_TOKENS):
        if name and pipeline.token_to_id(name) is not None:  # what is named is special, as in transformers
            with library_faults_as(InvalidCheckpoint, settings.source):
                pipeline.add_special_tokens([AddedToken(name, special=True, normalized=False)])
    ends = ([] if eos is None else [eos]) + (_ids(generation, "eos_token_id") or _ids(config, "eos_token_id"))
    if bos is None and "bos_token" not in settings.values:
        begins = [] if front is None else [front]
        bos = next(iter(begins or _ids(generation, "bos_token_id") or _ids(config, "bos_token_id")), None)
    if front is not None and front != bos:
        raise InvalidCheckpoint(f"{path}: the post-processor begins a text with token {front}, but bos_token is {bos}")
    chat_template = _chat_template(folder / "chat_template.jinja", settings)
    try:
        return PipelineTokenizer(
            pipeline,
            to_bytes,
            vocab_size=vocab_size,
            eos_token_ids=dict.fromkeys(ends),
            bos_token_id=bos,
            add_bos=front is not None,
            chat_template=chat_template,
        )
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{folder}: {error}") from None


def _read_pipeline(path: Path) -> Pipeline:
    data = read_bounded(path, MAX_TOKENIZER_BYTES)
    state = json_object(data, str(path))
    with library_faults_as(InvalidCheckpoint, str(path)):
        pipeline = Pipeline.from_buffer(data)
    pipeline.no_truncation()  # a prompt is taken as it is
    pipeline.no_padding()
    kind = type(pipeline.model).__name__
    if kind not in ("BPE", "Unigram"):
        raise InvalidCheckpoint(f"{path}: the model is {kind}; supported: BPE, Unigram")
    if dropout := state["model"].get("dropout"):
        raise InvalidCheckpoint(f"{path}: the model's dropout is {dropout}; expected none")
    for token in state.get("added_tokens", ()):  # the library numbers tokens in its own way where it has to
        if pipeline.token_to_id(token["content"]) != token["id"]:
            raise InvalidCheckpoint(f"{path}: added token {token['content']!r:.60} cannot have the id {token['id']}")
    return pipeline


def _settings(path: Path) -> Fields:
    """A JSON file's settings; without the file there are none. A link that leads nowhere is a file that is lacking."""
    return Fields(f"{path}:", read_json(path) if os.path.lexists(path) else {})


def _ids(settings: Fields, key: str) -> list[int]:
    """A token id, several, or none."""
    value = settings.get(key)
    many = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(token_id) is not int for token_id in many):
        settings.fail(key, "expected a token id or a list of them")
    return many


def _token_name(settings: Fields, key: str) -> str | None:
    if isinstance(value := settings.get(key), dict):
        return Fields(f"{settings.source} {key}:", value).text("content", None)
    return settings.text(key, None)


def _token_id(settings: Fields, key: str, pipeline: Pipeline) -> int | None:
    name = _token_name(settings, key)
    token_id = None if name is None else pipeline.token_to_id(name)
    if token_id is None and name is not None:
        raise InvalidCheckpoint(f"{settings.source} {key} {name!r:.60} is not in the vocabulary")
    return token_id


def _spelling(pipeline: Pipeline, path: Path) -> Callable[[str], bytes]:
    """From a token's name to its bytes, by the pipeline's decoder."""
    state = json.loads(pipeline.decoder.__getstate__()) if pipeline.decoder else {"type": "null"}
    steps = state.get("decoders", [state])
    kinds = " ".join(step["type"] for step in steps)
    if kinds == "ByteLevel":
        return byte_level
    replaced = {}
    for step in steps:
        match step:
            case {"pattern": {"String": str(old)}, "content": str(new)} if len(old) == 1:
                replaced[ord(old)] = new
            case {"type": "Metaspace", "replacement": str(old)}:
                replaced[ord(old)] = " "
            case {"type": "ByteFallback" | "Fuse"} | {"type": "Strip", "content": " ", "stop": 0}:
                pass
            case _:
                kinds += " (in this form)"
    if not SENTENCEPIECE_DECODERS.fullmatch(kinds):
        raise InvalidCheckpoint(
            f"{path}: decoder {kinds:.120} is not supported; expected ByteLevel, or Replace ByteFallback Fuse Strip"
        )

    def to_bytes(token: str) -> bytes:
        byte = BYTE_TOKEN.fullmatch(token) if "ByteFallback" in kinds else None
        return bytes.fromhex(byte[1]) if byte else token.translate(replaced).encode()

    return to_bytes


def _token_in_front(pipeline: Pipeline, path: Path) -> int | None:
    """The token that the post-processor puts before a text."""
    with library_faults_as(InvalidCheckpoint, str(path)):
        bare, whole = (pipeline.encode("a", add_special_tokens=added).ids for added in (False, True))
    front = whole[: len(whole) - len(bare)]
    if front + bare != whole or len(front) > 1:
        raise InvalidCheckpoint(f"{path}: the post-processor makes {whole!s:.80} of {bare!s:.80}; supported: one token in front")
    return front[0] if front else None


def _chat_template(path: Path, settings: Fields) -> str | None:
    """A file of its own goes first; a list holds templates by name."""
    if os.path.lexists(path):
        try:
            return read_bounded(path).decode()
        except UnicodeDecodeError as error:
            raise InvalidCheckpoint(f"{path}: not text in UTF-8: {error}") from None
    if not isinstance(many := settings.get("chat_template"), list):
        return settings.text("chat_template", None)
    if not all(isinstance(entry, dict) for entry in many):
        settings.fail("chat_template", "expected a text, or a list of objects with name and template")
    entries = [Fields(f"{settings.source} chat_template:", entry) for entry in many]
    return {entry.text("name"): entry.text("template") for entry in entries}.get("default")


def write_tokenizer_json(tokenizer: Tokenizer, folder: Path) -> None:
    """Write what `read_tokenizer_json` and transformers' AutoTokenizer read: three files, the same bytes each time."""
    source = as_pipeline(tokenizer)
    bos, eos = (
        None if token_id is None else source.pipeline.id_to_token(token_id)
        for token_id in (source.bos_token_id, source.eos_token_id)
    )
    state = json.loads(source.pipeline.to_str())
    if source.add_bos and state["post_processor"] is None:
        text = {"Sequence": {"id": "A", "type_id": 0}}
        begun = [{"SpecialToken": {"id": bos, "type_id": 0}}, text]
        names = {bos: {"id": bos, "ids": [source.bos_token_id], "tokens": [bos]}}
        state["post_processor"] = {"type": "TemplateProcessing", "single": begun, "pair": [*begun, text], "special_tokens": names}
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos}
    settings |= {"add_bos_token": source.add_bos, "clean_up_tokenization_spaces": False}
    settings |= {} if source.chat_template is None else {"chat_template": source.chat_template}
    generation = {"bos_token_id": source.bos_token_id, "eos_token_id": end_token_ids(source) or None}
    files = {"tokenizer.json": state, "tokenizer_config.json": settings, "generation_config.json": generation}
    for name, values in files.items():
        write_json(folder / name, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFVocabulary:
    """What a GGUF's `tokenizer.ggml.*` holds, and `BPETokenizer` takes."""

    tokens: list[str]
    merges: list[str]  # "left right", best first
    kinds: list[int]  # token_type
    pre: str
    bos_token_id: int | None
    eos_token_ids: list[int]  # `eos_token_id` first, then in order
    add_bos: bool
    chat_template: str | None


def gguf_vocabulary(tokenizer: Tokenizer) -> GGUFVocabulary:
    """A tokenizer as a GGUF says it. InvalidCheckpoint: no byte-level BPE, or a way of cutting words without a name there."""
    source = as_pipeline(tokenizer)
    state = json.loads(source.pipeline.to_str())
    model = state["model"]
    if source.to_bytes is not byte_level or model["type"] != "BPE":
        raise InvalidCheckpoint(f"the tokenizer is {model['type']} and not byte-level; a GGUF is written of byte-level BPE only")
    for key in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model[key]:
            raise InvalidCheckpoint(f"the tokenizer's {key} is {model[key]!r:.60}; a GGUF cannot say that")
    tokens = sorted((vocabulary := source.pipeline.get_vocab()), key=vocabulary.__getitem__)
    padding = range(source.num_tokens, source.vocab_size)
    kinds = [NORMAL] * len(tokens) + [UNUSED] * len(padding)
    for token in state["added_tokens"]:
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
        for flag in ("lstrip", "rstrip", "single_word", *(["normalized"] if state["normalizer"] else [])):
            if token[flag]:
                raise InvalidCheckpoint(f"token {token['content']!r:.60} is matched with {flag}; a GGUF cannot say that")
    if spaced := next((pair for pair in model["merges"] if any(" " in part for part in pair)), None):
        raise InvalidCheckpoint(f"merge {spaced!r:.80} holds a space; a GGUF cannot say that")
    pre = _rule_name(state)
    if not model["merges"] and pre != "lab":  # an empty list is left out of the file, and a missing one is a fault
        raise InvalidCheckpoint("the tokenizer's BPE has no merges; a GGUF cannot say that")
    return GGUFVocabulary(
        tokens=[*tokens, *map(padding_name, padding)],
        merges=[" ".join(pair) for pair in model["merges"]],
        kinds=kinds,
        pre=pre,
        bos_token_id=source.bos_token_id,
        eos_token_ids=end_token_ids(source),
        add_bos=source.add_bos,
        chat_template=source.chat_template,
    )


def _rule_name(state: dict[str, Any]) -> str:
    """The name in a GGUF of the way that a pipeline cuts words."""
    steps = _steps(state["normalizer"]) + _steps(state["pre_tokenizer"])
    for name, rule in PRE_TOKENIZERS.items():
        parts = (json.loads(part.__getstate__()) for part in (rule.normalizer(), rule.pre_tokenizer()) if part is not None)
        if [step for part in parts for step in _steps(part)] == steps and rule.ignore_merges == state["model"]["ignore_merges"]:
            return name
    kinds = " ".join(step["type"] for step in steps)
    raise InvalidCheckpoint(f"this way of cutting words ({kinds:.120}) has no name here; known: {', '.join(PRE_TOKENIZERS)}")


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Normalizers or pre-tokenizers one after the other, without what concerns offsets only."""
    if part is None or part["type"] != "Sequence":
        return [{key: value for key, value in part.items() if key != "trim_offsets"}] if part else []
    return [step for inner in part.get("pretokenizers") or part.get("normalizers") or () for step in _steps(inner)]
