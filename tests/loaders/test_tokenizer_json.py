"""tokenizer.json in and out, against transformers' AutoTokenizer on the same folder, and damaged in many ways."""

from __future__ import annotations

import copy
import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import pytest
from hugging_face import VOCAB_SIZE, save_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Pipeline
from transformers import PreTrainedTokenizerFast

from labcore.core.errors import InvalidCheckpoint, InvalidRequest
from labcore.loaders import zoo
from labcore.loaders.bpe import PRE_TOKENIZERS, BPETokenizer, PipelineTokenizer
from labcore.loaders.gguf import read_gguf
from labcore.loaders.gguf_writer import write_gguf
from labcore.loaders.llama_gguf import read_tokenizer
from labcore.loaders.load import load_checkpoint
from labcore.loaders.tokenizer import IncrementalDecoder, LabTokenizer, Tokenizer
from labcore.loaders.tokenizer_json import gguf_vocabulary, read_tokenizer_json, write_tokenizer_json

WORDS = [
    "the",
    "a",
    "1",
    "23",
    "é",
    "日本",
    "🙂",
    "don't",
    " ",
    "  ",
    "\n",
    "\n\n ",
    "▁",
    "<0x41>",
    "<s>",
    "</s>",
    "<think>",
    "½",
    "e\u0301",
]
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.lists(st.sampled_from(WORDS), max_size=12).map("".join),
)


def alphabet() -> list[str]:
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(others)) for byte in range(256)]


def byte_level(pre: str = "smollm") -> Pipeline:
    """<unk> <s> </s> and <think>, all bytes, some merges."""
    merges = ["t h", "th e", "Ġ the", "Ġ a", "2 3", "Ġ 1", "' t", "Ġ Ġ", "Ċ Ċ", "Ã ©"]
    tokens = ["<unk>", "<s>", "</s>", "<think>", *alphabet(), *(merge.replace(" ", "") for merge in merges)]
    return BPETokenizer(tokens, merges, [3, 3, 3, 4] + [1] * (len(tokens) - 4), pre=pre).pipeline


def sentencepiece() -> Pipeline:
    """As in Llama 2: a space is ▁, one is put in front, and a character without a token is bytes."""
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a"), ("▁", "▁")]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁thea1é", *map("".join, merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    pipeline = Pipeline(model)
    pipeline.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pipeline.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pipeline.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    put_in_front(pipeline, "<s>")
    return pipeline


def metaspace() -> Pipeline:
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁", -2.0), ("▁the", -1.0), *((c, -3.0) for c in "thea1é日")]
    pipeline = Pipeline(models.Unigram(pieces, unk_id=0))
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace()
    pipeline.decoder = decoders.Metaspace()
    pipeline.add_special_tokens(["<unk>", "<s>", "</s>"])
    return pipeline


def put_in_front(pipeline: Pipeline, name: str, behind: str = "") -> None:
    tokens = [(token, pipeline.token_to_id(token)) for token in (name, behind) if token]
    pipeline.post_processor = processors.TemplateProcessing(single=f"{name} $A {behind}".strip(), special_tokens=tokens)


PIPELINES: dict[str, Callable[[], Pipeline]] = {
    name: lambda name=name: byte_level(name) for name in PRE_TOKENIZERS if name != "lab"
}
PIPELINES |= {"sentencepiece": sentencepiece, "metaspace": metaspace}


def write(folder: Path, pipeline: Pipeline | str | None = None, **files: Any) -> Path:
    """A folder with a tokenizer.json; keywords: name of a JSON file -> contents."""
    folder.mkdir(exist_ok=True)
    text = pipeline if isinstance(pipeline, str) else (pipeline or byte_level()).to_str()
    (folder / "tokenizer.json").write_text(text, "utf-8")
    for name, contents in files.items():
        (folder / f"{name}.json").write_text(json.dumps(contents))
    return folder


def read(folder: Path, vocab_size: int = 1000) -> PipelineTokenizer:
    return read_tokenizer_json(folder, vocab_size)


def oracle(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}


# In.


@pytest.mark.parametrize("name", PIPELINES)
def test_the_same_ids_and_texts_as_transformers(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, PIPELINES[name](), tokenizer_config=CONFIG)
    ours, theirs = read(folder), oracle(folder)

    @given(TEXTS)
    def check(text: str) -> None:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        for skip in (False, True):
            whole = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            said = ours.decode(ids, skip)
            # a text that is complete loses the space that was put before it; a completion does not
            assert said in (whole, " " + whole)
            assert said == whole or "▁" in ours.pipeline.to_str()
            decoder = IncrementalDecoder(ours, skip)
            assert "".join([*(decoder.feed([token_id]) for token_id in ids), decoder.finish()]) == said

    check()


@given(ids=st.lists(st.integers(0, 269), max_size=12), skip=st.booleans())
def test_any_ids_of_a_byte_level_vocabulary(small: tuple[PipelineTokenizer, Any], ids: list[int], skip: bool) -> None:
    ours, theirs = small
    assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[PipelineTokenizer, Any]:
    folder = write(tmp_path_factory.mktemp("small"), tokenizer_config=CONFIG)
    return read(folder), oracle(folder)


@pytest.mark.parametrize("tokenizer_class", ["LlamaTokenizer", "LlamaTokenizerFast"])
def test_the_file_is_followed_where_transformers_5_has_rules_of_its_own(tokenizer_class: str, tmp_path: Path) -> None:
    """A limit: see the module's docstring. The class's rules are Metaspace's; the file's put a space before each part."""
    folder = write(tmp_path, sentencepiece(), tokenizer_config=CONFIG | {"tokenizer_class": tokenizer_class})
    ours, theirs = read(folder), oracle(folder)
    alone, plain = Pipeline.from_file(str(folder / "tokenizer.json")), PreTrainedTokenizerFast.from_pretrained(folder)

    def differ(text: str) -> bool:
        ids = ours.encode(text)
        assert ids == alone.encode(text, add_special_tokens=False).ids == plain.encode(text, add_special_tokens=False)
        return ids != theirs.encode(text, add_special_tokens=False)

    assert [text for text in ("the a", "a  a", "a</s>b", "</s>the", " x", " the") if differ(text)] == [
        "a</s>b",
        "</s>the",
        " x",
        " the",
    ]


def test_a_completion_keeps_its_first_space(tmp_path: Path) -> None:
    tokenizer = read(write(tmp_path, sentencepiece()))
    assert tokenizer.decode(tokenizer.encode("the a")) == " the a"
    assert tokenizer.decode(tokenizer.encode("日")) == " 日"
    assert tokenizer.token_bytes(tokenizer.encode("\n")[-1]) == b"\n"
    assert tokenizer.decode([tokenizer.pipeline.token_to_id("<0xE6>")]) == "\ufffd"


BOS = {"bos_token": "<s>"}


@pytest.mark.parametrize("front", [None, "<s>"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"add_bos_token": True},
        BOS,
        BOS | {"add_bos_token": True},
        BOS | {"add_bos_token": False},
        BOS | {"add_eos_token": False},
        BOS | {"add_bos_token": None},
        {"bos_token": {"content": "<s>", "lstrip": False, "__type": "AddedToken"}, "add_bos_token": True},
        {"bos_token": None},
    ],
)
def test_what_a_text_begins_with(front: str | None, config: dict[str, Any], tmp_path: Path) -> None:
    """`add_bos` says what transformers' `tokenizer(text)` does."""
    pipeline = byte_level()
    if front:
        put_in_front(pipeline, front)
    folder = write(tmp_path, pipeline, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"} | config)
    if config == {"bos_token": None} and front:  # begun with a token that the settings deny
        with pytest.raises(InvalidCheckpoint, match="begins a text with token 1, but bos_token is None"):
            read(folder)
        return
    ours = read(folder)
    bos = [ours.bos_token_id] if ours.add_bos else []
    assert bos + ours.encode("the a") == oracle(folder)("the a")["input_ids"]


def test_every_id_that_ends_a_text(tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer_config=CONFIG, generation_config={"eos_token_id": [7, 2, 5]}, config={"eos_token_id": 9})
    assert read(folder).eos_token_ids == {2, 5, 7} and read(folder).eos_token_id == 2
    write(folder, generation_config={"bos_token_id": 1})
    assert read(folder).eos_token_ids == {2, 9}
    write(folder, tokenizer_config={"eos_token": None}, generation_config={"eos_token_id": 4})
    assert read(folder).eos_token_ids == {4} == {read(folder).eos_token_id}


def test_bos_of_the_model_where_the_tokenizer_says_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, config={"bos_token_id": 5})
    assert read(folder).bos_token_id == 5 and not read(folder).add_bos
    assert read(write(tmp_path, tokenizer_config={"bos_token": None})).bos_token_id is None


def test_named_tokens_are_special(tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "Ċ", "pad_token": "x"})
    ours, theirs = read(folder), oracle(folder)
    assert ours.is_special(ours.pipeline.token_to_id("x")) and not ours.is_special(ours.pipeline.token_to_id("y"))
    ids = ours.encode("axb\n")
    assert ids == theirs.encode("axb\n") and ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "ab"


def test_chat_templates(tmp_path: Path) -> None:
    assert read(write(tmp_path)).chat_template is None
    assert read(write(tmp_path, tokenizer_config={"chat_template": "one"})).chat_template == "one"
    many = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert read(write(tmp_path, tokenizer_config={"chat_template": many})).chat_template == "plain"
    assert read(write(tmp_path, tokenizer_config={"chat_template": many[:1]})).chat_template is None
    (tmp_path / "chat_template.jinja").write_text("of its own ✓\n", "utf-8")
    assert read(tmp_path).chat_template == oracle(write(tmp_path, tokenizer_config=CONFIG)).chat_template == "of its own ✓\n"


def test_padding_rows(tmp_path: Path) -> None:
    tokenizer = read(write(tmp_path), 300)
    count = tokenizer.num_tokens
    assert tokenizer.vocab_size == 300 and not tokenizer.is_special(count - 1)
    assert tokenizer.is_special(count) and tokenizer.token_bytes(299) == b"" and tokenizer.decode([count, 299], False) == ""
    with pytest.raises(InvalidRequest, match="no token 300; the vocabulary has 300 tokens"):
        tokenizer.token_bytes(300)
    with pytest.raises(InvalidCheckpoint, match=f"has {count} tokens; the embedding has {count - 1} rows"):
        read(tmp_path, count - 1)


def test_settings_for_training_do_not_cut_a_prompt(tmp_path: Path) -> None:
    pipeline = byte_level()
    pipeline.enable_truncation(max_length=2)
    pipeline.enable_padding(length=64)
    assert len(read(write(tmp_path, pipeline)).encode("x y z 1")) == 7


# What is refused.


def changed(**values: Any) -> str:
    """The small tokenizer.json with values at paths like model__vocab."""
    data = json.loads(byte_level().to_str())
    for path, value in values.items():
        *parents, last = path.split("__")
        place = data
        for parent in parents:
            place = place[parent]
        place[last] = value
    return json.dumps(data)


ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
BOTH_ENDS = processors.BertProcessing(("</s>", 2), ("<s>", 1))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "tokenizer.json: not JSON that can be used"),
        ("{", "not JSON that can be used: Expecting property name"),
        ("[]", "holds a list; expected a JSON object"),
        ("null", "holds a NoneType; expected a JSON object"),
        ("{}", "tokenizer.json: "),
        ('{"model": 1, "model": 1}', "key 'model' occurs 2 times"),
        (changed(model=None), "did not match any variant"),
        (changed(decoder=None), "decoder null .*is not supported"),
        (changed(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}), "decoder WordPiece .*expected ByteLevel"),
        (changed(decoder={"type": "BPEDecoder", "suffix": "</w>"}), "decoder BPEDecoder"),
        (changed(decoder={"type": "Strip", "content": " ", "start": 1, "stop": 0}), "decoder Strip"),
        (changed(decoder={"type": "Replace", "pattern": {"Regex": "a+"}, "content": " "}), r"Replace \(in this form\)"),
        (changed(decoder={"type": "Replace", "pattern": {"String": "ab"}, "content": " "}), r"Replace \(in this form\)"),
        (
            changed(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}),
            "the model is WordLevel; supported: BPE, Uni",
        ),
        (changed(model__dropout=0.5), "dropout is 0.5"),
        (changed(model__merges=[["q", "qq"]]), "Token `qq` out of vocabulary"),
        (changed(added_tokens=[{"id": 7, "content": "<new>"} | ADDED]), "'<new>' cannot have the id 7"),
        (changed(added_tokens=[{"id": -1, "content": "<new>"} | ADDED]), "invalid value: integer `-1`"),
        (changed(model__vocab={"a": 0, "b": 2}, model__merges=[], added_tokens=[]), "2 tokens but not one of id 1"),
        (changed(model__vocab={"a": 0, "b": 0}, model__merges=[], added_tokens=[]), "2 tokens but not one of id 1"),
        (changed(model__vocab={}, model__merges=[], added_tokens=[]), None),
        (
            changed(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False}),
            "pattern",
        ),
        (changed(post_processor=json.loads(BOTH_ENDS.__getstate__())), "makes .* supported: one token in front"),
        ('{"added_tokens": [{"content": "\\ud800"}]}', "surrogate|hex escape"),
        ("[" * 100_000, "recursion|invalid"),
    ],
)
def test_a_bad_tokenizer_json_is_named(text: str, says: str | None, tmp_path: Path) -> None:
    folder = write(tmp_path, text)
    if says is None:
        assert read(folder).encode("abc") == []
        return
    with pytest.raises(InvalidCheckpoint, match=says) as caught:
        read(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("tokenizer_config", [], "holds a list; expected a JSON object"),
        ("tokenizer_config", {"bos_token": 1}, "bos_token is 1; expected str"),
        ("tokenizer_config", {"bos_token": {"content": 1}}, "bos_token: content is 1; expected str"),
        ("tokenizer_config", {"eos_token": "<nowhere>"}, "eos_token '<nowhere>' is not in the vocabulary"),
        ("tokenizer_config", {"eos_token": "\ud800"}, r"eos_token is '\\ud800'; half a surrogate pair is no text"),
        ("tokenizer_config", {"eos_token": "\0"}, "is not in the vocabulary"),
        ("tokenizer_config", {"chat_template": 3}, "chat_template is 3; expected str"),
        (
            "tokenizer_config",
            {"chat_template": [3]},
            "tokenizer_config.json: chat_template is .3.; expected a text, or a list of",
        ),
        ("tokenizer_config", {"chat_template": [{"template": "x"}]}, "chat_template: name is missing; expected str"),
        ("tokenizer_config", {"chat_template": [{"name": "default"}]}, "chat_template: template is missing; expected str"),
        ("tokenizer_config", {"chat_template": [{"name": [], "template": ""}]}, r"chat_template: name is \[\]; expected str"),
        ("tokenizer_config", {"chat_template": "\udfff"}, r"chat_template is '\\udfff'; half a surrogate pair"),
        ("generation_config", {"eos_token_id": "2"}, "eos_token_id is '2'; expected a token id or a list"),
        ("generation_config", {"eos_token_id": [2, True]}, "expected a token id or a list"),
        ("generation_config", {"eos_token_id": [2, 1000]}, "special token 1000 is outside the vocabulary of 1000"),
        ("config", {"eos_token_id": -1}, "special token -1 is outside"),
        ("config", {"bos_token_id": 1.0}, "bos_token_id is 1.0"),
        ("config", 3, "holds a int; expected a JSON object"),
    ],
)
def test_bad_settings_are_named(name: str, values: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=says) as caught:
        read(write(tmp_path, **{name: values}))
    assert str(tmp_path) in str(caught.value)


FILES = ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json", "chat_template.jinja"]
UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (Path.mkdir, "cannot be read: neither a file nor a link to one"),
    "pipe": (lambda path: os.mkfifo(path), "cannot be read: neither a file nor a link to one"),
    "endless": (lambda path: path.symlink_to("/dev/zero"), "cannot be read: neither a file nor a link to one"),
    "broken link": (lambda path: path.symlink_to("../../blobs/nowhere"), "cannot be read: neither a file nor a link to one"),
    "too large": (lambda path: (path.touch(), os.truncate(path, 1 << 40)), "has 1099511627776 bytes; expected at most"),
    "not text": (lambda path: path.write_bytes(b"\xff\xfe\xff{"), "not .* can't decode byte 0xff in position 0"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("what", UNREADABLE)
def test_files_that_cannot_be_read(name: str, what: str, tmp_path: Path) -> None:
    """Named, and no other file is blamed; a link into the cache that leads nowhere is no absent file."""
    make, says = UNREADABLE[what]
    file = write(tmp_path) / name
    file.unlink(missing_ok=True)
    make(file)
    with pytest.raises(InvalidCheckpoint, match=f"^{re.escape(str(file))}: {says}"):
        read(tmp_path)


def test_only_tokenizer_json_must_be_there(tmp_path: Path) -> None:
    assert not read(write(tmp_path)).eos_token_ids
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"tokenizer\.json: cannot be read: no such file"):
        read(tmp_path)


VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**32,
    2**64,
    1e308,
    "",
    "\0",
    "a",
    "<s>",
    [],
    [[]],
    {},
    {"type": "ByteLevel"},
    "▁",
]


def damage(data: Any, draw: random.Random) -> Any:
    """Another value somewhere in a document, or one less, or one twice."""
    path, place = [], data
    while isinstance(place, dict | list) and place and (not path or draw.random() < 0.8):
        key = draw.choice(list(place)) if isinstance(place, dict) else draw.randrange(len(place))
        path.append((place, key))
        place = place[key]
    parent, key = path[-1]
    match draw.randrange(3):
        case 0:
            del parent[key]
        case 1:
            parent[key] = copy.deepcopy(draw.choice(VALUES))
        case _ if isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        case _:
            parent[draw.choice(["a", "type", "id", "single"])] = parent[key]
    return data


@pytest.mark.parametrize("make", [byte_level, sentencepiece, metaspace])
def test_random_damage_is_refused_or_harmless(make: Callable[[], Pipeline], tmp_path: Path) -> None:
    """The library's errors and panics come out as InvalidCheckpoint; what is read can be used."""
    draw = random.Random(0)
    whole = make().to_str()
    refused = 0
    for trial in range(300):
        if trial % 3:
            data = json.loads(whole)
            for _ in range(draw.randint(1, 3)):
                data = damage(data, draw)
            text = json.dumps(data)
        else:
            start = draw.randrange(len(whole))
            text = whole[:start] + draw.choice(["", "\0", '"', "9", "}", "-"]) + whole[start + draw.randint(0, 2) :]
        folder = write(tmp_path, text, tokenizer_config=CONFIG)
        try:
            tokenizer = read(folder)
        except InvalidCheckpoint:
            refused += 1
            continue
        for sample in ("", "the a 1 é日🙂<s>", "\0 \n"):
            try:
                tokenizer.decode(tokenizer.encode(sample))
            except InvalidRequest as error:
                assert "cannot encode" in str(error)
    assert 100 < refused < 300


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["bos_token", "eos_token", "pad_token", "add_bos_token", "add_eos_token", "chat_template", "eos_token_id", "bos_token_id"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.sampled_from(["tokenizer_config", "generation_config", "config"]))
def test_any_settings(tmp_path: Path, values: dict[str, Any], name: str) -> None:
    folder = tmp_path / name
    try:
        tokenizer = read(write(folder, **{name: values}))
    except InvalidCheckpoint:
        return
    finally:
        (folder / f"{name}.json").unlink()
    assert tokenizer.encode("a") and all(0 <= token_id < 1000 for token_id in tokenizer.eos_token_ids)


# Out.


@pytest.fixture(scope="module")
def smollm2() -> BPETokenizer:
    return read_tokenizer(read_gguf(zoo.model_path("smollm2")))


def made(pre: str, **more: Any) -> BPETokenizer:
    return BPETokenizer(**asdict(gguf_vocabulary(PipelineTokenizer(byte_level(pre), BYTE_LEVEL, vocab_size=300))) | more)


BYTE_LEVEL = BPETokenizer(["a"], [], pre="gpt-2").to_bytes


def tokenizers_to_write(smollm2: BPETokenizer) -> dict[str, Tokenizer]:
    found: dict[str, Tokenizer] = {"smollm2": smollm2, "lab": LabTokenizer()}
    found["llama-bpe"] = made("llama-bpe", bos_token_id=1, eos_token_ids=[2, 8, 0], add_bos=True, chat_template="{{ 1 }}\n✓")
    return found | {pre: made(pre, eos_token_ids=[2], bos_token_id=1) for pre in ("gpt-2", "qwen2")}


@pytest.mark.parametrize("name", ["smollm2", "lab", "llama-bpe", "gpt-2", "qwen2"])
def test_written_for_transformers_and_for_us(name: str, smollm2: BPETokenizer, tmp_path: Path) -> None:
    tokenizer = tokenizers_to_write(smollm2)[name]
    write_tokenizer_json(tokenizer, tmp_path)
    again, theirs = read(tmp_path, tokenizer.vocab_size), oracle(tmp_path)
    for key in ("vocab_size", "eos_token_ids", "eos_token_id", "bos_token_id", "add_bos", "chat_template"):
        assert getattr(again, key) == getattr(tokenizer, key), key
    assert theirs.bos_token_id == tokenizer.bos_token_id and theirs.eos_token_id == tokenizer.eos_token_id
    specials = [tokenizer.token_bytes(index).decode() for index in range(300) if tokenizer.is_special(index)]

    @given(st.lists(TEXTS | st.sampled_from(specials), max_size=4).map("".join))
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids
        assert theirs(text)["input_ids"] == ([tokenizer.bos_token_id] if tokenizer.add_bos else []) + ids
        for skip in (False, True):
            said = tokenizer.decode(ids, skip)
            assert said == again.decode(ids, skip)
            assert said == theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)

    check()


def test_lines_end_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_on_windows(path: Path, newline: str | None = None, **more: Any) -> IO[Any]:
        return open(path, newline="\r\n" if newline is None else newline, **more)

    monkeypatch.setattr(Path, "open", as_on_windows)
    write_tokenizer_json(LabTokenizer(), tmp_path)
    monkeypatch.undo()
    for file in tmp_path.iterdir():
        assert b"\r" not in file.read_bytes() and file.read_bytes().endswith(b"}\n")


def test_written_the_same_each_time(smollm2: BPETokenizer, tmp_path: Path) -> None:
    for tokenizer in tokenizers_to_write(smollm2).values():
        write_tokenizer_json(tokenizer, tmp_path)
        once = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        assert once.keys() == {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
        write_tokenizer_json(read(tmp_path, tokenizer.vocab_size), tmp_path)
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == once


def test_generation_config(tmp_path: Path) -> None:
    from transformers import GenerationConfig

    write_tokenizer_json(made("llama-bpe", bos_token_id=1, eos_token_ids=[2, 8, 0]), tmp_path)
    theirs = GenerationConfig.from_pretrained(str(tmp_path))
    assert theirs.eos_token_id == [2, 0, 8] and theirs.bos_token_id == 1


# To a GGUF's vocabulary.


def test_smollm2_s_vocabulary_comes_back(smollm2: BPETokenizer, tmp_path: Path) -> None:
    metadata = read_gguf(zoo.model_path("smollm2")).metadata
    vocabulary = gguf_vocabulary(smollm2)
    assert vocabulary.tokens == metadata["tokenizer.ggml.tokens"] and vocabulary.merges == metadata["tokenizer.ggml.merges"]
    kinds = metadata["tokenizer.ggml.token_type"]
    assert vocabulary.kinds == kinds.tolist()  # type: ignore[union-attr]
    assert vocabulary.pre == metadata["tokenizer.ggml.pre"] and vocabulary.eos_token_ids == [2]
    write_tokenizer_json(smollm2, tmp_path)
    assert gguf_vocabulary(read(tmp_path, 49152)) == vocabulary


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "lab"])
def test_a_vocabulary_comes_back(pre: str, tmp_path: Path) -> None:
    """Kinds, padding rows and the rule's name included."""
    given = {"bos_token_id": 1, "eos_token_ids": [2, 8, 0], "add_bos": True, "chat_template": "x"}
    tokenizer: Tokenizer = LabTokenizer() if pre == "lab" else made(pre, **given)
    vocabulary = gguf_vocabulary(tokenizer)
    assert vocabulary.pre == pre and len(vocabulary.tokens) == len(vocabulary.kinds) == tokenizer.vocab_size
    if pre != "lab":
        assert vocabulary.kinds[:5] == [3, 3, 3, 4, 1] and vocabulary.kinds[-1] == 5 and vocabulary.tokens[-1] == "[PAD299]"
    write_tokenizer_json(tokenizer, tmp_path)
    assert (
        gguf_vocabulary(read(tmp_path, tokenizer.vocab_size)) == vocabulary == gguf_vocabulary(BPETokenizer(**asdict(vocabulary)))
    )


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_published_files_differ_in_what_does_not_matter(pre: str, tmp_path: Path) -> None:
    """Offsets, and a sequence of one."""
    data = json.loads(byte_level(pre).to_str())
    steps = data["pre_tokenizer"]["pretokenizers"]
    steps[-1]["trim_offsets"] = False
    data["pre_tokenizer"] = steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
    data["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    assert gguf_vocabulary(read(write(tmp_path, json.dumps(data)), 270)).pre == pre


SPLIT = {"type": "Split", "pattern": {"Regex": r"\d"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (changed(pre_tokenizer=SPLIT), r"way of cutting words \(Split\) has no name here; known: gpt-2, smollm"),
        (changed(pre_tokenizer=None), r"\(\) has no name"),
        (changed(normalizer={"type": "NFKC"}), r"\(NFKC Digits ByteLevel\) has no name"),
        (changed(model__ignore_merges=True), "has no name"),
        (changed(model__unk_token="<unk>"), "unk_token is '<unk>'; a GGUF cannot say that"),
        (changed(model__byte_fallback=True), "byte_fallback is True"),
        (changed(added_tokens=[{"id": 1, "content": "<s>"} | ADDED | {"rstrip": True}]), "'<s>' is matched with rstrip"),
        (changed(model__merges=[]), "BPE has no merges; a GGUF cannot say that"),
        (sentencepiece().to_str(), "the tokenizer is BPE and not byte-level"),
        (metaspace().to_str(), "the tokenizer is Unigram and not byte-level"),
    ],
)
def test_what_a_gguf_cannot_say(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=says):
        gguf_vocabulary(read(write(tmp_path, text)))


def test_a_folder_of_transformers_becomes_a_gguf(tmp_path: Path) -> None:
    folder, path = save_model(tmp_path / "tiny", "Llama"), tmp_path / "tiny.gguf"
    source, theirs = load_checkpoint(folder).tokenizer, PreTrainedTokenizerFast.from_pretrained(folder)
    write_gguf(load_checkpoint(folder), path)
    back = load_checkpoint(path).tokenizer
    assert back.vocab_size == source.vocab_size == VOCAB_SIZE
    for text in ("the other</s>", "<s>thé\n  日本 12", "th e"):
        ids = back.encode(text)
        assert ids == source.encode(text) == theirs.encode(text, add_special_tokens=False)
        assert back.decode(ids, False) == source.decode(ids, False) == text
    assert len(back.encode("the")) == 1


def test_a_tokenizer_of_another_kind() -> None:
    class Other(Tokenizer):
        pass

    with pytest.raises(InvalidCheckpoint, match="a Other has no vocabulary"):
        gguf_vocabulary(Other())
