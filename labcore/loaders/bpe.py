"""Byte-level BPE from the metadata of a GGUF file, on the `tokenizers` library.

A GGUF holds the vocabulary, the merges and the *name* of the rule that cuts text into words before merging. The name
is honoured, an unknown one refused: a wrong rule gives plausible ids that the model never saw. Byte-level BPE after
Radford et al. 2019 (GPT-2): each byte is written as a printable character, so the vocabulary is text.

Limit: a byte that the vocabulary has no token for is dropped, as by the tokenizers these models come with. SmolLM2's
lacks six control characters (0x04, 0x06, 0x13, 0x14, 0x16, 0x1D) and the first bytes of the planes without characters.

    >>> tokenizer = BPETokenizer(tokens, merges, kinds, pre="smollm", eos_token_ids=[2])
    >>> tokenizer.decode(tokenizer.encode("Hello 2026"))
    'Hello 2026'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Pipeline

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.tokenizer import Tokenizer, check_token_id, utf8

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # tokenizer.ggml.token_type

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut into words, and what goes with it where the file does not say."""

    digits: bool = False  # each digit a word of its own, before anything else
    words: str | None = None  # a regular expression; None is GPT-2's
    ignore_merges: bool = False  # a word that is a token is taken whole
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.words is not None:
            steps.append(pre_tokenizers.Split(Regex(self.words), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.words is None))
        return pre_tokenizers.Sequence(steps)


PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(digits=True),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), PreTokenizer(words=LLAMA3_WORDS, ignore_merges=True, add_bos=True)),
}


def _byte_alphabet() -> dict[str, str]:
    """GPT-2's printable character of each byte -> the character of that code."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): chr(byte) for byte in printable} | {chr(256 + index): chr(byte) for index, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
_TO_BYTES = str.maketrans(_ALPHABET)


class BPETokenizer(Tokenizer):
    """tokens: by id. merges: "left right", best first. kinds: token_type by id, 1 (normal) throughout if empty.

    InvalidCheckpoint: an unknown pre-tokenizer, a token that occurs twice, a merge or an id outside the vocabulary.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[str],
        kinds: Sequence[int] = (),
        *,
        pre: str,
        eos_token_ids: Iterable[int] = (),
        bos_token_id: int | None = None,
        add_bos: bool | None = None,
        chat_template: str | None = None,
    ) -> None:
        rule = PRE_TOKENIZERS.get(pre)
        if rule is None:
            raise InvalidCheckpoint(f"tokenizer.ggml.pre is {pre!r}; supported: {', '.join(PRE_TOKENIZERS)}")
        if len(kinds) not in (0, len(tokens)):
            raise InvalidCheckpoint(f"tokenizer.ggml.token_type has {len(kinds)} entries for {len(tokens)} tokens")
        self._tokens = tokens
        self._special = frozenset(index for index, kind in enumerate(kinds) if kind in (UNKNOWN, CONTROL))
        self._pipeline = _pipeline(tokens, merges, kinds, rule)
        self.vocab_size = len(tokens)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.bos_token_id = bos_token_id
        self.add_bos = bos_token_id is not None and (rule.add_bos if add_bos is None else add_bos)
        self.chat_template = chat_template
        for token_id in (*self.eos_token_ids, *([] if bos_token_id is None else [bos_token_id])):
            if not 0 <= token_id < len(tokens):
                raise InvalidCheckpoint(f"special token {token_id} is outside the vocabulary of {len(tokens)} tokens")

    def encode(self, text: str) -> list[int]:
        utf8(text)
        return self._pipeline.encode(text, add_special_tokens=False).ids

    def token_bytes(self, token_id: int) -> bytes:
        token = self._tokens[check_token_id(token_id, self.vocab_size)]
        return token.translate(_TO_BYTES).encode("latin-1") if _ALPHABET.keys() >= set(token) else token.encode()

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special


def _pipeline(tokens: Sequence[str], merges: Sequence[str], kinds: Sequence[int], rule: PreTokenizer) -> Pipeline:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise InvalidCheckpoint(f"token {twice!r} occurs more than once in tokenizer.ggml.tokens")
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise InvalidCheckpoint(f"merge {merge!r} in tokenizer.ggml.merges is not of two tokens that make a third")
        pairs.append((left, right))
    pipeline = Pipeline(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=rule.ignore_merges))
    pipeline.pre_tokenizer = rule.build()
    for special, wanted in ((True, (UNKNOWN, CONTROL)), (False, (USER_DEFINED,))):
        marked = [token for token, kind in zip(tokens, kinds, strict=False) if kind in wanted and token]
        pipeline.add_tokens([AddedToken(token, special=special, normalized=False) for token in marked])
    return pipeline
