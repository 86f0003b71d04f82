"""Text to token ids and back: the contract, the lab model's tokenizer, and decoding as the ids arrive.

A token stands for bytes, and a character may be spread over several tokens. So decoding has one rule, here and in
the stream: join the bytes of all tokens that are not special, read them as UTF-8, and write U+FFFD for what is not
UTF-8, an incomplete character at the end included. Standard library only.

    >>> tokenizer = LabTokenizer()
    >>> tokenizer.encode("the")                          # the piece "th", then the byte "e"
    [765, 101]
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from string import ascii_lowercase, ascii_uppercase
from typing import Protocol

from labcore.core.errors import InvalidRequest


class Tokenizer(Protocol):
    """What an engine needs of a tokenizer.

    `encode` recognises special tokens in the text and adds nothing: whoever forms a prompt puts `bos_token_id` in
    front if `add_bos` says so. An id outside the vocabulary and text that is not Unicode raise InvalidRequest.
    """

    vocab_size: int
    eos_token_ids: frozenset[int]  # each of them ends a text
    eos_token_id: int | None  # the one that a chat template calls `eos_token`
    bos_token_id: int | None
    add_bos: bool
    chat_template: str | None  # Jinja

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; of a special token, those of its name."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether a token steers the model and is no text."""
        ...

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids, by the rule at the top of this module."""
        return join_bytes(self, ids, skip_special_tokens).decode("utf-8", errors="replace")


def end_token_ids(tokenizer: Tokenizer) -> list[int]:
    """All ids that end a text: `eos_token_id` first, then in order."""
    return sorted(tokenizer.eos_token_ids, key=lambda token_id: (token_id != tokenizer.eos_token_id, token_id))


def join_bytes(tokenizer: Tokenizer, ids: Iterable[int], skip_special_tokens: bool) -> bytes:
    pieces = ((token_id, tokenizer.token_bytes(token_id)) for token_id in ids)
    return b"".join(piece for token_id, piece in pieces if not (skip_special_tokens and tokenizer.is_special(token_id)))


def utf8(text: str) -> bytes:
    """The bytes of a text, or InvalidRequest if it holds half a surrogate pair."""
    if not isinstance(text, str):
        raise InvalidRequest(f"a text to tokenize is a str; got {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InvalidRequest(
            f"the text is not Unicode: a lone surrogate U+{code:04X} at position {error.start}; send whole characters"
        ) from None


def check_token_id(token_id: int, vocab_size: int) -> int:
    if not 0 <= token_id < vocab_size:
        raise InvalidRequest(f"there is no token {token_id}; the vocabulary has {vocab_size} tokens, 0 to {vocab_size - 1}")
    return token_id


class IncrementalDecoder:
    """Decodes ids as they arrive, in whole characters: the joined pieces equal `decode` of all ids.

    >>> decoder = IncrementalDecoder(LabTokenizer())
    >>> [decoder.feed([id]) for id in "é!".encode()], decoder.finish()
    (['', 'é', '!'], '')
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The characters that these ids complete; what may be the start of one more is kept back."""
        return self._utf8.decode(join_bytes(self._tokenizer, ids, self._skip))

    def finish(self) -> str:
        """What was kept back, as U+FFFD: no more ids will come."""
        return self._utf8.decode(b"", final=True)


SPECIALS = ("<|bos|>", "<|eos|>", "<|pad|>", "<|im_start|>", "<|im_end|>", "<|system|>", "<|user|>", "<|assistant|>")

# Where one user's words end and another's begin, told by special tokens alone.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|><|{{ message['role'] }}|>{{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|><|assistant|>{% endif %}"
)


def two_byte_pieces() -> list[bytes]:
    """The lab vocabulary's 760 pieces: 676 letter pairs, then letters beside a space, then six of punctuation."""
    pairs = [a + b for a in ascii_lowercase for b in ascii_lowercase]
    pairs += [" " + a for a in ascii_lowercase] + [a + " " for a in ascii_lowercase] + [" " + a for a in ascii_uppercase]
    pairs += ["  ", "\n\n", ". ", ", ", ".\n", ": "]
    return [pair.encode() for pair in pairs]


class LabTokenizer(Tokenizer):
    """The lab model's 1,024 tokens: 256 bytes, 8 specials, 760 pieces of two bytes. Every id decodes.

    Text is cut greedily from the left: a two-byte piece if there is one, a byte otherwise.
    """

    def __init__(self) -> None:
        pieces = [bytes([byte]) for byte in range(256)] + [name.encode() for name in SPECIALS] + two_byte_pieces()
        self._pieces = pieces
        self._special_ids = {name: 256 + index for index, name in enumerate(SPECIALS)}
        self._pair_ids = {piece: index for index, piece in enumerate(pieces) if index >= 256 + len(SPECIALS)}
        self._split = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")
        self.vocab_size = len(pieces)
        self.bos_token_id: int | None = self._special_ids["<|bos|>"]
        self.eos_token_id: int | None = self._special_ids["<|eos|>"]
        self.eos_token_ids = frozenset({self._special_ids["<|eos|>"], self._special_ids["<|im_end|>"]})
        self.add_bos = False
        self.chat_template: str | None = CHAT_TEMPLATE

    def encode(self, text: str) -> list[int]:
        utf8(text)  # refuses lone surrogates at their position in the whole text
        ids: list[int] = []
        for part in self._split.split(text):
            special = self._special_ids.get(part)
            if special is None:
                ids += self._encode_plain(part.encode())
            else:
                ids.append(special)
        return ids

    def _encode_plain(self, data: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(data):
            pair = self._pair_ids.get(data[at : at + 2])
            ids.append(data[at] if pair is None else pair)
            at += 1 if pair is None else 2
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[check_token_id(token_id, self.vocab_size)]

    def is_special(self, token_id: int) -> bool:
        return 256 <= token_id < 256 + len(SPECIALS)
