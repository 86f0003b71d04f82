"""Executes a step: one ragged batch through the decoder, then one token for each sequence that reached its end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from labcore.core.config import CacheConfig
from labcore.core.errors import NumericalError
from labcore.engine.plan import Sampled, ScheduledSequence, SchedulerOutput
from labcore.engine.sampler import sample
from labcore.kernels.api import ForwardBatch
from labcore.kv.block_table import slots
from labcore.kv.paged_cache import Copy
from labcore.model.llama import LlamaModel


class ModelRunner:
    """A model, its KV pool, and the way from a plan to a batch."""

    def __init__(self, model: LlamaModel, cache: CacheConfig) -> None:
        self.model = model
        self.block_size = cache.block_size
        self.kv = model.new_kv_cache(cache)

    def execute(self, output: SchedulerOutput) -> list[Sampled]:
        """What each scheduled sequence sampled: tokens, nothing where a chunk ended early, or why there is no token."""
        if not output.scheduled:
            return []
        self.copy_blocks(output.copies)
        logits = iter(self.model.forward(build_batch(output.scheduled, self.block_size), self.kv))
        return [self._sample(share, next(logits)) if share.samples else [] for share in output.scheduled]

    def copy_blocks(self, copies: Sequence[Copy]) -> None:
        """Copy whole blocks, every layer, K and V, all slots: whatever part of them is written next."""
        if copies:
            sources, destinations = map(list, zip(*copies, strict=True))
            self.kv[:, :, destinations] = self.kv[:, :, sources]

    def _sample(self, share: ScheduledSequence, logits: np.ndarray) -> Sampled:
        """One token for each answer that goes on from this row: they differ in the index of their random numbers."""
        sequence = share.sequence
        first, position = sequence.index, len(sequence.token_ids)
        try:
            return [
                sample(logits, sequence.params, seed=sequence.seed, position=position, sample_index=index)
                for index in range(first, first + share.num_samples)
            ]
        except NumericalError as error:  # ends this request, and no other
            return error


def build_batch(scheduled: tuple[ScheduledSequence, ...], block_size: int) -> ForwardBatch:
    """The shares of a step laid end to end: nothing padded."""
    token_ids: list[int] = []
    positions: list[int] = []
    slot_mapping: list[int] = []
    context_lens: list[int] = []
    logits_indices: list[int] = []
    for share in scheduled:
        sequence, start = share.sequence, share.sequence.num_computed_tokens
        span = range(start, start + share.num_tokens)
        token_ids += sequence.token_ids[span.start : span.stop]
        positions += span
        slot_mapping += slots(sequence.block_table, span, block_size)
        context_lens.append(span.stop)
        if share.samples:
            logits_indices.append(len(token_ids) - 1)
    return ForwardBatch(
        token_ids=_ids(token_ids),
        positions=_ids(positions),
        query_start=_ids(accumulate((share.num_tokens for share in scheduled), initial=0)),
        context_lens=_ids(context_lens),
        block_tables=_ids(block for share in scheduled for block in share.sequence.block_table),
        block_table_start=_ids(accumulate((len(share.sequence.block_table) for share in scheduled), initial=0)),
        slot_mapping=_ids(slot_mapping),
        logits_indices=_ids(logits_indices),
    )


def _ids(values: object) -> np.ndarray:
    return np.fromiter(values, np.int64)  # type: ignore[call-overload]
