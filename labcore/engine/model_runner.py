"""Executes a step: drafts, one ragged batch through the decoder, then a token behind each row that is to be continued."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from labcore.core.config import CacheConfig
from labcore.core.errors import NumericalError
from labcore.engine.logprobs import Logprobs, logprobs_of
from labcore.engine.philox import uniform
from labcore.engine.plan import NO_DRAFT, Draft, Sampled, ScheduledSequence, SchedulerOutput
from labcore.engine.proposer import NoProposer, Proposer
from labcore.engine.sampler import CHOICE, COIN, Place, Sampler
from labcore.engine.sequence import Sequence, answer_name
from labcore.engine.verify import agreeing, rejected
from labcore.kernels.api import ForwardBatch
from labcore.kv.block_table import slots
from labcore.kv.paged_cache import Copy
from labcore.model.llama import LlamaModel


class Piece(NamedTuple):
    """Tokens of a sequence that stand one after the other from position `start`, and which of them give rows of logits."""

    sequence: Sequence
    start: int
    token_ids: Tokens[int]
    rows: range

    @classmethod
    def of(cls, sequence: Sequence, num_tokens: int, rows: bool, guesses: Tokens[int] = ()) -> Piece:
        """Its next known tokens, and guesses behind them. rows: whether one is wanted behind the last known, and each guess."""
        start = sequence.num_computed_tokens
        token_ids = [*sequence.token_ids[start : start + num_tokens], *guesses]
        return cls(sequence, start, token_ids, range(num_tokens - 1 if rows else len(token_ids), len(token_ids)))

    @property
    def scored(self) -> Piece:
        """The same with all rows of a prompt, if that is to be scored."""
        wanted = self.sequence.params.prompt_logprobs is not None and self.start < self.sequence.num_prompt_tokens
        return self._replace(rows=range(self.rows.stop)) if wanted else self

    @classmethod
    def behind(cls, sequence: Sequence, guesses: Tokens[int], rows: bool) -> Piece:
        """The last of these guesses, those before it being computed."""
        return cls(sequence, len(sequence.token_ids) + len(guesses) - 1, guesses[-1:], range(0 if rows else 1, 1))


class ModelRunner:
    """A model, its KV pool, and the way from a plan to tokens.

    rows: after a step, by the name of each answer, the logits that each of its new tokens was chosen from: views, until the next.
    """

    def __init__(self, model: LlamaModel, cache: CacheConfig, proposer: Proposer | None = None) -> None:
        self.model = model
        self.block_size = cache.block_size
        self.kv = model.new_kv_cache(cache)
        self.sampler = Sampler(model.backend)
        self.proposer: Proposer = proposer or NoProposer()
        self.rows: dict[str, np.ndarray] = {}  # (num_tokens, vocab_size) each

    def execute(self, output: SchedulerOutput) -> list[Sampled]:
        """What each scheduled sequence sampled: tokens, nothing where a chunk ended early, or why there is no token."""
        self.rows = {}
        if not output.scheduled:
            return []
        self.copy_blocks(output.copies)
        drafts = self.proposer.propose(output)
        pieces = [piece.scored for piece in pieces_of(output.scheduled, drafts)]
        logits = self.forward(pieces)
        ends = list(accumulate(len(piece.rows) for piece in pieces))
        sampled = self._sample(output.scheduled, drafts, logits, ends)
        for i, (piece, end) in enumerate(zip(pieces, ends, strict=True)):
            try:
                _score_prompt(piece, logits[end - len(piece.rows) : end])
            except NumericalError as error:
                sampled[i] = error
        return sampled

    def forward(self, pieces: Tokens[Piece]) -> np.ndarray:
        """Compute all pieces in one batch; the wanted rows of logits, end to end: (num_rows, vocab_size)."""
        return self.model.forward(batch_of(pieces, self.block_size), self.kv)

    def copy_blocks(self, copies: Tokens[Copy]) -> None:
        """Copy whole blocks, every layer, K and V, all slots: whatever part of them is written next."""
        if copies:
            sources, destinations = map(list, zip(*copies, strict=True))
            self.kv[:, :, destinations] = self.kv[:, :, sources]

    def logprobs(self, name: str, token_ids: Tokens[int], num_top: int) -> tuple[Logprobs, ...]:
        """Of these new tokens of an answer, which the last step brought."""
        return tuple(logprobs_of(row, token, num_top) for row, token in zip(self.rows[name], token_ids, strict=False))

    def _sample(
        self, shares: Tokens[ScheduledSequence], drafts: Tokens[Draft], logits: np.ndarray, ends: list[int]
    ) -> list[Sampled]:
        """ends: where each share's rows end. All tokens that are chosen without regard to a law are chosen together."""
        places: list[Place] = []
        for share, draft, end in zip(shares, drafts, ends, strict=True):
            if share.samples and not draft.laws:
                places += self._places(share, draft, end)
        chosen = iter(self.sampler.choose(logits, places))
        sampled: list[Sampled] = []
        for share, draft, end in zip(shares, drafts, ends, strict=True):
            sequence, count = share.sequence, len(draft.tokens)
            if not share.samples:
                sampled.append([])
                continue
            if sequence.num_forks:
                sampled.append(_all_or_none([next(chosen) for _ in range(share.num_samples)]))
            elif draft.laws:
                sampled.append(self._rejected(share, draft, logits, end))
            else:
                sampled.append(agreeing(draft, [next(chosen) for _ in range(count + 1)]))
            for index in range(sequence.index, sequence.index + share.num_samples):  # answers that part have a row in common
                self.rows[answer_name(sequence.request_id, index)] = logits[end - count - 1 : end]
        return sampled

    def _places(self, share: ScheduledSequence, draft: Draft, end: int) -> list[Place]:
        """Behind the known tokens for each answer that goes on from there, and behind each guess."""
        sequence, count = share.sequence, len(draft.tokens)
        if sequence.num_forks:
            answers = range(sequence.index, sequence.index + share.num_samples)
            return [Place.behind(sequence, end - 1, (), CHOICE, index) for index in answers]
        return [Place.behind(sequence, end - 1 - count + i, draft.tokens[:i]) for i in range(count + 1)]

    def _rejected(self, share: ScheduledSequence, draft: Draft, logits: np.ndarray, end: int) -> Sampled:
        sequence, count = share.sequence, len(draft.tokens) + 1
        places = self._places(share, draft, count)  # among its own rows

        def coin(i: int) -> float:
            return uniform(sequence.seed, sequence.index, places[i].position, COIN)

        return rejected(draft, self.sampler.laws(logits[end - count : end], places), coin, number=lambda i: places[i].u)


def _all_or_none(chosen: list[int | NumericalError]) -> Sampled:
    """The first tokens of answers that part: from one row, so all or none of them are there."""
    error = next((token for token in chosen if isinstance(token, NumericalError)), None)
    return error or [token for token in chosen if not isinstance(token, NumericalError)]


def _score_prompt(piece: Piece, logits: np.ndarray) -> None:
    """What the model gave each token of the prompt that follows one of these rows; known ones stay, after a preemption.

    Raises NumericalError.
    """
    sequence, num_top = piece.sequence, piece.sequence.params.prompt_logprobs
    if num_top is not None:
        scored = sequence.prompt_logprobs
        for offset, row in zip(piece.rows, logits, strict=True):
            position = piece.start + offset + 1
            if len(scored) + 1 == position < sequence.num_prompt_tokens:
                scored.append(logprobs_of(row, sequence.token_ids[position], num_top))


def pieces_of(scheduled: Tokens[ScheduledSequence], drafts: Tokens[Draft]) -> list[Piece]:
    """The shares of a step, each with the guesses of its draft."""
    return [
        Piece.of(share.sequence, share.num_tokens - share.num_draft, share.samples, draft.tokens)
        for share, draft in zip(scheduled, drafts, strict=True)
    ]


def build_batch(scheduled: Tokens[ScheduledSequence], block_size: int) -> ForwardBatch:
    """The shares of a step without drafts, as one batch."""
    return batch_of(pieces_of(scheduled, [NO_DRAFT] * len(scheduled)), block_size)


def batch_of(pieces: Tokens[Piece], block_size: int) -> ForwardBatch:
    """The pieces of a step laid end to end: nothing padded."""
    token_ids: list[int] = []
    positions: list[int] = []
    slot_mapping: list[int] = []
    context_lens: list[int] = []
    logits_indices: list[int] = []
    for sequence, start, tokens, rows in pieces:
        logits_indices += (len(token_ids) + offset for offset in rows)
        span = range(start, start + len(tokens))
        token_ids += tokens
        positions += span
        slot_mapping += slots(sequence.block_table, span, block_size)
        context_lens.append(span.stop)
    return ForwardBatch(
        token_ids=_ids(token_ids),
        positions=_ids(positions),
        query_start=_ids(accumulate((len(piece.token_ids) for piece in pieces), initial=0)),
        context_lens=_ids(context_lens),
        block_tables=_ids(block for piece in pieces for block in piece.sequence.block_table),
        block_table_start=_ids(accumulate((len(piece.sequence.block_table) for piece in pieces), initial=0)),
        slot_mapping=_ids(slot_mapping),
        logits_indices=_ids(logits_indices),
    )


def _ids(values: object) -> np.ndarray:
    return np.fromiter(values, np.int64)  # type: ignore[call-overload]
