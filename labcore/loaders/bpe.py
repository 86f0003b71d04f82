"""Tokenizers on the `tokenizers` library: its pipeline under our contract, and byte-level BPE out of a GGUF's metadata.

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

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Pipeline

from labcore.core.errors import InvalidCheckpoint, InvalidRequest, LabError
from labcore.loaders.tokenizer import LabTokenizer, Tokenizer, check_token_id, end_token_ids, two_byte_pieces, utf8

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # tokenizer.ggml.token_type

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
# each of the lab's pieces is a word, and so is any other character
LAB_WORDS = "|".join([*(re.escape(piece.decode()) for piece in two_byte_pieces()), r"[\s\S]"])


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut into words, and what goes with it where the file does not say."""

    digits: bool = False  # each digit a word of its own, before anything else
    words: str | None = None  # a regular expression; None is GPT-2's
    nfc: bool = False  # characters are composed first
    ignore_merges: bool = False  # a word that is a token is taken whole
    add_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
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
    "qwen2": PreTokenizer(words=QWEN2_WORDS, nfc=True),
    "lab": PreTokenizer(words=LAB_WORDS, ignore_merges=True),
}


def _byte_alphabet() -> dict[str, str]:
    """GPT-2's printable character of each byte -> the character of that code."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): chr(byte) for byte in printable} | {chr(256 + index): chr(byte) for index, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()
_TO_BYTES = str.maketrans(_ALPHABET)
_FROM_BYTES = str.maketrans({byte: character for character, byte in _ALPHABET.items()})


def byte_level(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for."""
    return token.translate(_TO_BYTES).encode("latin-1") if _ALPHABET.keys() >= set(token) else token.encode()


@contextmanager
def library_faults_as(kind: type[LabError], what: str) -> Iterator[None]:
    """Around calls of `tokenizers` alone: it raises bare Exceptions, and Rust's panics, which are not even those."""
    try:
        yield
    except BaseException as error:
        plain = isinstance(error, Exception) and not isinstance(error, MemoryError)
        if not plain and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {' '.join(str(error).split()):.300}") from None


class PipelineTokenizer(Tokenizer):
    """A `tokenizers` pipeline as an engine wants it.

    to_bytes:      what a token says, by its name in the vocabulary.
    vocab_size:    the embedding's rows; those beyond the pipeline's tokens are special and say nothing.
    eos_token_ids: the first of them is `eos_token_id`.

    InvalidCheckpoint: ids with holes or beyond `vocab_size`, a special id outside the vocabulary.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        to_bytes: Callable[[str], bytes],
        *,
        vocab_size: int,
        eos_token_ids: Iterable[int] = (),
        bos_token_id: int | None = None,
        add_bos: bool = False,
        chat_template: str | None = None,
    ) -> None:
        ids, ends = sorted(pipeline.get_vocab().values()), tuple(eos_token_ids)
        if ids != list(range(len(ids))):
            hole = next(index for index, token_id in enumerate(ids) if index != token_id)
            raise InvalidCheckpoint(f"the vocabulary has {len(ids)} tokens but not one of id {hole}; expected ids without holes")
        if len(ids) > vocab_size:
            raise InvalidCheckpoint(f"the vocabulary has {len(ids)} tokens; the embedding has {vocab_size} rows")
        for token_id in ends if bos_token_id is None else (*ends, bos_token_id):
            if not 0 <= token_id < vocab_size:
                raise InvalidCheckpoint(f"special token {token_id!s:.80} is outside the vocabulary of {vocab_size} tokens")
        self.pipeline = pipeline
        self.to_bytes = to_bytes
        added = pipeline.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.num_tokens = len(ids)
        self.vocab_size = vocab_size
        self.eos_token_id = ends[0] if ends else None
        self.eos_token_ids = frozenset(ends)
        self.bos_token_id = bos_token_id
        self.add_bos = add_bos and bos_token_id is not None
        self.chat_template = chat_template

    def encode(self, text: str) -> list[int]:
        utf8(text)
        with library_faults_as(InvalidRequest, "the tokenizer cannot encode the text"):
            return self.pipeline.encode(text, add_special_tokens=False).ids

    def token_bytes(self, token_id: int) -> bytes:
        name = self.pipeline.id_to_token(check_token_id(token_id, self.vocab_size)) or ""
        return name.encode() if token_id in self._special else self.to_bytes(name)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special or token_id >= self.num_tokens


class BPETokenizer(PipelineTokenizer):
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
            raise InvalidCheckpoint(f"tokenizer.ggml.pre is {pre!r:.80}; supported: {', '.join(PRE_TOKENIZERS)}")
        if len(kinds) not in (0, len(tokens)):
            raise InvalidCheckpoint(f"tokenizer.ggml.token_type has {len(kinds)} entries for {len(tokens)} tokens")
        super().__init__(
            _pipeline(tokens, merges, kinds, rule),
            byte_level,
            vocab_size=len(tokens),
            eos_token_ids=eos_token_ids,
            bos_token_id=bos_token_id,
            add_bos=rule.add_bos if add_bos is None else add_bos,
            chat_template=chat_template,
        )


def padding_name(token_id: int) -> str:
    """What a GGUF calls a row of the embedding that has no token; its kind is UNUSED."""
    return f"[PAD{token_id}]"


def as_pipeline(tokenizer: Tokenizer) -> PipelineTokenizer:
    """The same tokenizer over a pipeline. The lab's becomes BPE without merges: its words are its pieces."""
    if isinstance(tokenizer, PipelineTokenizer):
        return tokenizer
    if not isinstance(tokenizer, LabTokenizer):
        raise InvalidCheckpoint(f"a {type(tokenizer).__name__} has no vocabulary that other programs could read")
    ids = range(tokenizer.vocab_size)
    kinds = [CONTROL if tokenizer.is_special(token_id) else NORMAL for token_id in ids]
    pieces = [tokenizer.token_bytes(token_id).decode("latin-1") for token_id in ids]
    return BPETokenizer(
        [piece if kind == CONTROL else piece.translate(_FROM_BYTES) for piece, kind in zip(pieces, kinds, strict=True)],
        [],
        kinds,
        pre="lab",
        eos_token_ids=end_token_ids(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        add_bos=tokenizer.add_bos,
        chat_template=tokenizer.chat_template,
    )


def _pipeline(tokens: Sequence[str], merges: Sequence[str], kinds: Sequence[int], rule: PreTokenizer) -> Pipeline:
    count = len(tokens)
    while kinds and count and kinds[count - 1] == UNUSED and tokens[count - 1] == padding_name(count - 1):
        count -= 1
    tokens = tokens[:count]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if vocabulary[token] != index)
        raise InvalidCheckpoint(f"token {twice!r:.80} occurs more than once in tokenizer.ggml.tokens")
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise InvalidCheckpoint(f"merge {merge!r:.80} in tokenizer.ggml.merges is not of two tokens that make a third")
        pairs.append((left, right))
    pipeline = Pipeline(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=rule.ignore_merges))
    pipeline.normalizer = rule.normalizer()
    pipeline.pre_tokenizer = rule.pre_tokenizer()
    pipeline.decoder = decoders.ByteLevel()
    for special, wanted in ((True, (UNKNOWN, CONTROL)), (False, (USER_DEFINED,))):
        marked = [token for token, kind in zip(tokens, kinds, strict=False) if kind in wanted and token]
        pipeline.add_tokens([AddedToken(token, special=special, normalized=False) for token in marked])
    return pipeline
