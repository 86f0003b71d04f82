"""SmolLM2's tokenizer against transformers', and against byte-level BPE written out here from its definition."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from labcore.core.errors import InvalidCheckpoint, InvalidRequest
from labcore.loaders import zoo
from labcore.loaders.bpe import BPETokenizer, as_pipeline
from labcore.loaders.gguf import GGUFFile, read_gguf
from labcore.loaders.llama_gguf import load_llama, read_tokenizer
from labcore.loaders.tokenizer import SPECIALS, IncrementalDecoder, LabTokenizer

WriteGGUF = Callable[..., Path]

SAMPLES = {
    "english": "The quick brown fox doesn't jump; it's I'LL we've 'tis 'S",
    "german": "Größenwahn über Äpfel, naïve Straße",
    "french": "Où est-ce qu'il y a l'œuf à 3 €?",
    "russian": "Съешь же ещё этих мягких французских булок",
    "greek": "Γαζέες καὶ μυρτιὲς δὲν θὰ βρῶ πιά",
    "arabic": "نص حكيم له سر قاطع ٣٤٥",
    "hebrew": "דג סקרן שט בים מאוכזב",
    "hindi": "ऋषियों को सताने वाले १२३",
    "thai": "เป็นมนุษย์สุดประเสริฐ",
    "chinese": "敏捷的棕色狐狸跳过了懒狗，一二三",
    "japanese": "いろはにほへと チリヌルヲ ﾊﾝｶｸ",
    "korean": "키스의 고유조건은 입술끼리",
    "emoji": "🙂👍🏽👩‍👩‍👧‍👦🏴‍☠️❤️🇫🇷",
    "combining": "e\u0301a\u0308\u0327 Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
    "direction": "\u202eabc\u202c \u200f\u200e\u2066x\u2069\ufeff",
    "numbers": "0 12 345 6,789 1.5e-10 0xFF ½ ²³ Ⅳ ٣٤ １２",
    "code": "def f(x):\n\treturn {'a': [x**2, -1]}  # ok\n\nfor(;;){i++;}\r\n",
    "spaces": "  a   b\t\tc \n \n  d\u00a0e\u3000f\u2028g   ",
    "control": "\x00\x01\x02\x07\x08\x0b\x0c\x1b\x7f\x80\x9f",
    "private": "\ue000\U000f0000\U0010ffff\U0001fbff",
    "special": "<|im_start|>user\n<|im_end|><|im_end|> <repo_name> <|endoftext |><|im_st",
    "long": "aaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!!!!!!!!!====------____",
}


def strings(count: int) -> list[str]:
    """Each sample, then joins of cut samples, then characters from all over Unicode."""
    draw = random.Random(0)
    samples = list(SAMPLES.values())
    found = ["", *samples]
    while len(found) < count:
        parts = []
        for _ in range(draw.randint(1, 4)):
            sample = draw.choice(samples)
            start = draw.randrange(len(sample))
            parts.append(sample[start : start + draw.randint(1, 20)])
        parts.append("".join(chr(draw.choice((draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)))) for _ in range(2)))
        draw.shuffle(parts)
        found.append(draw.choice(("", " ", "  ", "\n")).join(parts))
    return found


@pytest.fixture(scope="module")
def file() -> GGUFFile:
    return read_gguf(zoo.model_path("smollm2"))


@pytest.fixture(scope="module")
def tokenizer(file: GGUFFile) -> BPETokenizer:
    return read_tokenizer(file)


def test_facts(tokenizer: BPETokenizer) -> None:
    assert tokenizer.vocab_size == 49152 and tokenizer.eos_token_ids == {2} and tokenizer.bos_token_id == 1
    assert not tokenizer.add_bos and "<|im_start|>" in (tokenizer.chat_template or "")
    assert [index for index in range(49152) if tokenizer.is_special(index)] == list(range(17))


# Against transformers.


def test_2000_strings(tokenizer: BPETokenizer, smollm2_hf_tokenizer: Any) -> None:
    for text in strings(2000):
        ids = smollm2_hf_tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == ids, repr(text)
        for skip in (False, True):
            assert tokenizer.decode(ids, skip) == hf_decode(smollm2_hf_tokenizer, ids, skip), repr(text)


def hf_decode(hf: Any, ids: list[int], skip: bool) -> str:
    return hf.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


@settings(max_examples=200)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_any_text(tokenizer: BPETokenizer, smollm2_hf_tokenizer: Any, text: str) -> None:
    assert tokenizer.encode(text) == smollm2_hf_tokenizer.encode(text, add_special_tokens=False)


@settings(max_examples=200)
@given(ids=st.lists(st.one_of(st.integers(0, 300), st.integers(0, 49151)), max_size=30), skip=st.booleans())
def test_any_ids(tokenizer: BPETokenizer, smollm2_hf_tokenizer: Any, ids: list[int], skip: bool) -> None:
    """Incomplete characters get the same number of U+FFFD in both, and in the stream."""
    text = tokenizer.decode(ids, skip)
    assert text == hf_decode(smollm2_hf_tokenizer, ids, skip)
    decoder = IncrementalDecoder(tokenizer, skip)
    assert "".join([*(decoder.feed([token_id]) for token_id in ids), decoder.finish()]) == text


def test_why_the_oracle_s_pre_tokenizer_is_replaced(tokenizer: BPETokenizer, smollm2_hf_tokenizer: Any) -> None:
    """GPT-2's words give one space to the digit and leave one; digits first keep the two spaces together, as one token."""
    pieces = [tokenizer.token_bytes(token_id) for token_id in tokenizer.encode("a  1")]
    assert pieces == [b"a", b"  ", b"1"]
    split = smollm2_hf_tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12")
    assert [word for word, _ in split] == ["a", "ĠĠ", "1", "2"]


# Against the definition.

GPT2_WORDS = regex.compile(r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def byte_characters() -> list[str]:
    """GPT-2's character of each byte: itself if printable, else the next from 256 on."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(others)) for byte in range(256)]


class Definition:
    """Split out special tokens, then digits, then words; write bytes as characters; merge the best pair until none is left."""

    def __init__(self, file: GGUFFile) -> None:
        tokens, merges = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.merges"]
        assert isinstance(tokens, list) and isinstance(merges, list)
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.characters = byte_characters()
        self.specials = regex.compile("(" + "|".join(map(regex.escape, sorted(tokens[:17], key=len, reverse=True))) + ")")

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        for index, part in enumerate(self.specials.split(text)):
            if index % 2:
                found.append(self.ids[part])
                continue
            for piece in regex.split(r"(\p{N})", part):
                for word in GPT2_WORDS.findall(piece):
                    found += self.merge([self.characters[byte] for byte in word.encode()])
        return found

    def merge(self, parts: list[str]) -> Iterable[int]:
        parts = [part for part in parts if part in self.ids]  # a byte without a token is dropped
        while True:
            ranks = [(self.ranks.get(pair, 10**9), at) for at, pair in enumerate(pairwise(parts))]
            rank, at = min(ranks, default=(10**9, 0))
            if rank == 10**9:
                return [self.ids[part] for part in parts]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_the_definition(tokenizer: BPETokenizer, file: GGUFFile) -> None:
    definition = Definition(file)
    for text in strings(1000):
        assert tokenizer.encode(text) == definition.encode(text), repr(text)


DROPPED = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D}  # SmolLM2 has no token for these bytes, nor for what UTF-8 starts with:
PLANES = {0xF1, 0xF2}  # planes 4 to 11, in which no character is assigned


def test_round_trip_but_for_the_bytes_without_a_token(tokenizer: BPETokenizer) -> None:
    known = {tokenizer.token_bytes(token_id) for token_id in range(17, 49152)}
    lacking = {byte for byte in range(256) if bytes([byte]) not in known}
    assert lacking == DROPPED | PLANES | {0xC0, 0xC1, *range(0xF5, 0x100)}  # the last are in no UTF-8 text
    for text in strings(2000):
        kept = "".join(character for character in text if ord(character) not in DROPPED)
        if not any(0x40000 <= ord(character) < 0xC0000 for character in text):
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == kept


def test_lone_surrogate_and_unknown_id(tokenizer: BPETokenizer) -> None:
    with pytest.raises(InvalidRequest, match=r"U\+DC00 at position 3"):
        tokenizer.encode("abc\udc00")
    with pytest.raises(InvalidRequest, match="no token 49152; the vocabulary has 49152 tokens"):
        tokenizer.decode([1, 49152])


# Small vocabularies.


def test_kinds_of_tokens(write_gguf: WriteGGUF) -> None:
    """Control tokens are cut out of the text and skipped in decoding; user-defined ones are cut out and kept."""
    tokenizer = load_llama(write_gguf()).tokenizer
    names = [tokenizer.token_bytes(token_id).decode() for token_id in tokenizer.encode("ab<think> abcd<|im_end|>\n")]
    assert names == ["ab", "<think>", " ", "abcd", "<|im_end|>", "\n"]
    assert tokenizer.decode(tokenizer.encode("ab<think>a<|im_end|>")) == "ab<think>a"


def test_ends_and_bos(write_gguf: WriteGGUF) -> None:
    given = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.add_bos_token": True}
    tokenizer = load_llama(write_gguf(metadata=given)).tokenizer
    assert tokenizer.eos_token_ids == {0, 2} and tokenizer.add_bos
    bare = dict.fromkeys(("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.token_type"))
    tokenizer = load_llama(write_gguf(metadata=bare)).tokenizer
    assert tokenizer.bos_token_id is None and not tokenizer.add_bos and not tokenizer.eos_token_ids
    assert not tokenizer.is_special(1)


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["a", "b", " ", " 12", "3", "45", "'", "S"]),
        ("smollm", ["a", "b", "  ", "1", "2", "3", "4", "5", "'", "S"]),
        ("llama-bpe", ["a", "b", " ", " ", "12", "3", "45", "'S"]),
    ],
)
def test_pre_tokenizers_cut_differently(pre: str, words: list[str]) -> None:
    """One text under three rules; the merges show where a rule lets pieces meet."""
    tokens = [*"ab12345'SĠ", "ĠĠ", "12", "45", "Ġ1", "Ġ12", "'S"]
    tokenizer = BPETokenizer(tokens, ["Ġ 1", "Ġ1 2", "1 2", "4 5", "' S", "Ġ Ġ"], pre=pre)
    assert [tokenizer.token_bytes(token_id).decode() for token_id in tokenizer.encode("ab  12345'S")] == words


def test_qwen2_composes_characters_and_cuts_single_digits() -> None:
    tokens = [*"ab123'SĠ", "Ã", "©", "Ã©", "12", "'S", "Ġa", "e", "Ì", "ģ"]
    tokenizer = BPETokenizer(tokens, ["Ã ©", "1 2", "' S", "Ġ a"], pre="qwen2")
    words = [tokenizer.token_bytes(token_id).decode() for token_id in tokenizer.encode("e\u0301 a123'S")]
    assert words == ["é", " a", "1", "2", "3", "'S"]


LAB, LAB_BPE = LabTokenizer(), as_pipeline(LabTokenizer())


@settings(max_examples=500)
@given(
    st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from("abzAZ  \n.,:<|é\r")) | st.sampled_from(SPECIALS)
)
def test_the_lab_s_rule_cuts_as_the_lab_tokenizer_does(text: str) -> None:
    for whole in (text, f"a{text}<|im_end|>{text} b"):
        ids = LAB.encode(whole)
        assert LAB_BPE.encode(whole) == ids
        for skip in (False, True):
            assert LAB_BPE.decode(ids, skip) == LAB.decode(ids, skip)


def test_the_lab_s_vocabulary_as_bpe() -> None:
    for token_id in range(1024):
        assert LAB_BPE.token_bytes(token_id) == LAB.token_bytes(token_id)
        assert LAB_BPE.is_special(token_id) == LAB.is_special(token_id)
    for key in ("vocab_size", "eos_token_ids", "eos_token_id", "bos_token_id", "add_bos", "chat_template"):
        assert getattr(LAB_BPE, key) == getattr(LAB, key)
    for sample in SAMPLES.values():
        assert LAB_BPE.encode(sample) == LAB.encode(sample)


def test_rows_without_a_token() -> None:
    """What a GGUF calls [PADn], of kind 5, at the end; anywhere else it is a token like any other."""
    tokenizer = BPETokenizer(["a", "[PAD1]", "b", "[PAD3]", "[PAD4]"], [], [1, 5, 1, 5, 5], pre="gpt-2")
    assert tokenizer.vocab_size == 5 and [tokenizer.is_special(token_id) for token_id in range(5)] == [False] * 3 + [True] * 2
    assert tokenizer.decode([0, 3, 2, 4], skip_special_tokens=False) == "ab"
    assert tokenizer.encode("ab[PAD3]") == [0, 2]
    named = BPETokenizer(["a", "[PAD7]", "other"], [], [1, 5, 5], pre="gpt-2")
    assert named.decode([2], skip_special_tokens=False) == "other"


def test_the_first_end_has_a_name() -> None:
    assert BPETokenizer([*"abc"], [], pre="gpt-2", eos_token_ids=[2, 0]).eos_token_id == 2
    assert BPETokenizer([*"abc"], [], pre="gpt-2").eos_token_id is None


def test_unknown_pre_tokenizer() -> None:
    with pytest.raises(InvalidCheckpoint, match=r"tokenizer\.ggml\.pre is 'tekken'; supported: gpt-2, smollm, llama-bpe"):
        BPETokenizer(["a"], [], pre="tekken")


@pytest.mark.parametrize(
    ("tokens", "merges", "pre", "ends"),
    [
        (["a"], [], "p" * 10_000, []),
        (["a" * 10_000] * 2, [], "gpt-2", []),
        (["a"], ["m" * 10_000], "gpt-2", []),
        (["a"], [], "gpt-2", [10**4000]),
    ],
)
def test_messages_are_short(tokens: list[str], merges: list[str], pre: str, ends: list[int]) -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        BPETokenizer(tokens, merges, pre=pre, eos_token_ids=ends)
    assert len(str(caught.value)) < 200


def test_llama3_against_transformers(write_gguf: WriteGGUF) -> None:
    """transformers knows this rule by name, so here it is the oracle as it stands. Its merges come out of the same file."""
    from transformers import AutoTokenizer

    tokens = ["<|endoftext|>", *byte_characters(), "Ġa", "12", "ab", "'S", "Ġ'"]
    given = {
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.merges": ["Ġ a", "1 2", "a b", "' S", "Ġ '"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    path = write_gguf(metadata=given)
    ours = read_tokenizer(read_gguf(path))
    theirs = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    assert ours.add_bos
    for text in strings(200):
        if "<|" not in text:
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), repr(text)
