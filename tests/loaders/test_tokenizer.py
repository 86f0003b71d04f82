"""The lab tokenizer, and decoding as ids arrive."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labcore.core.errors import InvalidRequest
from labcore.loaders.tokenizer import SPECIALS, IncrementalDecoder, LabTokenizer, two_byte_pieces

LAB = LabTokenizer()

TEXTS = ["", " ", "hello", "the cat", "\x00\x01\x7f", "naïve café", "日本語", "🙂👩‍👩‍👧‍👦", "שלום مرحبا"]
TEXTS += ["e\u0301\u0327", "\ufeff\u202e", "\r\n\t", "\U0010ffff\ue000"]


def test_vocabulary() -> None:
    pieces = [LAB.token_bytes(token_id) for token_id in range(LAB.vocab_size)]
    assert len(pieces) == len(set(pieces)) == 1024
    assert [len(piece) for piece in pieces[:256]] == [1] * 256
    assert tuple(piece.decode() for piece in pieces[256:264]) == SPECIALS
    assert pieces[264:] == two_byte_pieces() and {len(piece) for piece in pieces[264:]} == {2}
    assert [LAB.is_special(token_id) for token_id in (255, 256, 263, 264)] == [False, True, True, False]


def test_every_id_decodes() -> None:
    for token_id in range(1024):
        text = LAB.decode([token_id], skip_special_tokens=False)
        assert text == LAB.token_bytes(token_id).decode("utf-8", "replace") and text
        assert (LAB.decode([token_id]) == "") == LAB.is_special(token_id)


def test_greedy_from_the_left() -> None:
    pieces = [LAB.token_bytes(token_id) for token_id in LAB.encode("the cat  sat. 42")]
    assert pieces == [b"th", b"e ", b"ca", b"t ", b" s", b"at", b". ", b"4", b"2"]


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(text: str) -> None:
    assert LAB.decode(LAB.encode(text)) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_round_trip_of_any_text(text: str) -> None:
    ids = LAB.encode(text)
    assert LAB.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= token_id < 1024 for token_id in ids)


def test_specials_in_text() -> None:
    ids = LAB.encode("<|im_start|>hi<|im_end|><|eos")
    assert ids[0] == 259 and ids[2] == 260 and ids[3:] == LAB.encode("<|eos")
    assert LAB.decode(ids) == "hi<|eos" and LAB.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|><|eos"
    assert LAB.eos_token_ids == {257, 260} and LAB.bos_token_id == 256 and not LAB.add_bos


@pytest.mark.parametrize(("text", "says"), [("ab\ud800c", r"U\+D800 at position 2"), ("\udfff", r"U\+DFFF at position 0")])
def test_lone_surrogates(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        LAB.encode(text)
    assert "\n" not in str(caught.value)


def test_not_a_text() -> None:
    with pytest.raises(InvalidRequest, match="is a str; got bytes"):
        LAB.encode(b"bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize("token_id", [-1, 1024, 2**70])
def test_unknown_ids(token_id: int) -> None:
    with pytest.raises(InvalidRequest, match=f"no token {token_id}; the vocabulary has 1024 tokens, 0 to 1023"):
        LAB.decode([65, token_id])


def stream(parts: list[list[int]], skip: bool = True) -> list[str]:
    decoder = IncrementalDecoder(LAB, skip_special_tokens=skip)
    return [decoder.feed(part) for part in parts] + [decoder.finish()]


@given(st.lists(st.lists(st.integers(0, 1023), max_size=6)), st.booleans())
def test_stream_is_decode(parts: list[list[int]], skip: bool) -> None:
    assert "".join(stream(parts, skip)) == LAB.decode([token_id for part in parts for token_id in part], skip)


@given(st.binary(), st.data())
def test_stream_of_any_bytes(data: bytes, draw: st.DataObject) -> None:
    """Byte tokens, valid or not, cut anywhere, with special tokens between the bytes of a character."""
    ids: list[int] = []
    for byte in data:
        ids += [256] * draw.draw(st.integers(0, 1)) + [byte]
    pieces = stream([[token_id] for token_id in ids])
    assert "".join(pieces) == LAB.decode(ids) == data.decode("utf-8", "replace")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_stream_emits_whole_characters(text: str) -> None:
    """Byte by byte, each piece is one character, at the byte that completes it, and nothing is replaced."""
    pieces = stream([[byte] for byte in text.encode()])
    assert [piece for piece in pieces if piece] == list(text) and pieces[-1] == ""


@pytest.mark.parametrize("length", [1, 2])
def test_an_incomplete_character_at_the_end(length: int) -> None:
    """Two of three bytes of a character, then the end: U+FFFD in the stream and in decode, once."""
    ids = [65, *"日".encode()[:length], 257]
    assert stream([[token_id] for token_id in ids]) == ["A"] + [""] * (length + 1) + ["\ufffd"]
    assert LAB.decode(ids) == "A\ufffd"


def test_standard_library_only() -> None:
    """It also runs in a browser."""
    code = "import labcore.loaders.tokenizer as t; assert t.LabTokenizer().encode('the')"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
