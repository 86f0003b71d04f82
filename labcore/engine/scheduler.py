"""Who runs in this step, how many tokens each, in which blocks. Bookkeeping only: no arrays, no model.

The rules, each paid for by somebody's outage:
- One budget of tokens per step, oldest running sequence first; chunked prefill, decode and recomputation are the same thing.
- What a step promises is reserved in that step, so nothing downstream can run out of blocks.
- A waiting request is admitted when the blocks of *all* its known tokens are free (and a watermark besides), and takes
  them at once. The watermark never holds back an empty engine.
- Memory comes from free blocks, then from cached ones nobody references, then from the youngest running sequence, which
  goes back to the front of the queue with nothing computed. So the oldest running sequence always advances.
- A request that can never fit is refused when it is added.

Source: Yu et al. 2022 (Orca: iteration-level scheduling), Kwon et al. 2023 (vLLM: paging, recompute preemption),
Agrawal et al. 2024 (Sarathi: chunked prefill).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from labcore.core.config import SchedulerConfig
from labcore.core.errors import InvalidRequest, NumericalError, OutOfBlocks
from labcore.core.trace import ArrivalRecord, ScheduledRecord, StepRecord
from labcore.engine.sequence import FinishReason, Sequence, SequenceStatus
from labcore.kv.paged_cache import PagedCache

Sampled = list[int] | NumericalError  # what a step brought a sequence


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """A sequence's share of a step: its next `num_tokens` tokens; it `samples` if they reach the end of the known ones."""

    sequence: Sequence
    num_tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step."""

    scheduled: tuple[ScheduledSequence, ...]
    preempted: tuple[Sequence, ...]


Booked = tuple[ScheduledSequence, tuple[int, ...], FinishReason | None]  # tokens kept, why the request ends


class Scheduler:
    """First come, first served. `schedule` plans a step, `update` books what it computed."""

    def __init__(self, config: SchedulerConfig, cache: PagedCache, observer: Callable[[StepRecord], None] | None = None) -> None:
        """observer: called with the record of each step, after its books are closed. None: no record is made."""
        self.config = config
        self.cache = cache
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.num_steps = 0
        self.num_empty_steps = 0
        self.num_preemptions = 0
        self._observer = observer
        self._arrived: list[ArrivalRecord] = []  # since the last record
        self._aborted: list[str] = []

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises InvalidRequest, naming the numbers, if it can never run."""
        needed = self.cache.blocks_for(sequence.num_prompt_tokens + 1)
        if needed > self.cache.allocator.num_blocks:
            raise InvalidRequest(
                f"request {sequence.request_id!r}: prompt of {sequence.num_prompt_tokens} tokens and one more need "
                f"{needed} KV blocks of {self.cache.block_size}; the pool has {self.cache.allocator.num_blocks}"
            )
        self.waiting.append(sequence)
        if self._observer is not None:
            params = asdict(sequence.params) | {"seed": sequence.seed}
            self._arrived.append(ArrivalRecord(request_id=sequence.request_id, prompt=tuple(sequence.token_ids), params=params))

    def schedule(self) -> SchedulerOutput:
        """Plan a step; all blocks it needs are in the tables when this returns."""
        budget = self.config.max_num_batched_tokens
        scheduled: list[ScheduledSequence] = []
        preempted: list[Sequence] = []

        for sequence in list(self.running):
            if budget == 0 or sequence.status is not SequenceStatus.RUNNING:
                break  # out of tokens, or preempted to make room for an older one, as are all behind it
            share = self._share(sequence, budget)
            if not self._reserve(sequence, share.num_tokens, preempted):
                break
            scheduled.append(share)
            budget -= share.num_tokens

        while self.waiting and budget and not preempted and len(self.running) < self.config.max_num_seqs:
            if not self._admit(self.waiting[0]):
                break
            share = self._share(self.waiting.popleft(), budget)
            scheduled.append(share)
            budget -= share.num_tokens
        return SchedulerOutput(tuple(scheduled), tuple(preempted))

    def update(self, output: SchedulerOutput, sampled: Iterable[Sampled]) -> list[Sequence]:
        """Book the step: `sampled` has one entry per scheduled sequence.

        An entry is a list of tokens, empty where the chunk did not reach the end, or the NumericalError that ends this
        request and no other. Returns the sequences that finished.
        """
        booked = [self._book(share, tokens) for share, tokens in zip(output.scheduled, sampled, strict=True)]
        # while the finished still hold their blocks, and only if somebody looks
        records = tuple(_record(*entry) for entry in booked) if self._observer is not None else ()
        finished = []
        for share, _, reason in booked:
            if reason is not None:
                self._finish(share.sequence, reason)
                finished.append(share.sequence)
        self._close(output, records, finished)
        return finished

    def abort(self, request_id: str) -> bool:
        """Give up a request wherever it is; False if it is not here (any more)."""
        for sequence in [*self.waiting, *self.running]:
            if sequence.request_id == request_id:
                self._finish(sequence, FinishReason.ABORT)
                if self._observer is not None:
                    self._aborted.append(request_id)
                return True
        return False

    def check(self) -> None:
        """The books balance between steps: queues, statuses, tables, pool. Raises AssertionError."""
        assert all(s.status is SequenceStatus.WAITING and not s.block_table for s in self.waiting), (
            "a waiting sequence holds blocks"
        )
        assert all(s.status is SequenceStatus.RUNNING for s in self.running), "a sequence in running is not running"
        assert len(self.running) <= self.config.max_num_seqs, "more sequences run than allowed"
        for s in self.running:
            assert 0 <= s.num_computed_tokens <= len(s.token_ids) <= s.max_length, f"{s.request_id}: counters out of order"
            assert len(s.block_table) >= self.cache.blocks_for(s.num_computed_tokens), (
                f"{s.request_id}: computed tokens without a block"
            )
        self.cache.check([s.block_table for s in self.running])

    def _share(self, sequence: Sequence, budget: int) -> ScheduledSequence:
        num_tokens = min(sequence.num_uncomputed_tokens, self.config.chunk_limit, budget)
        return ScheduledSequence(sequence, num_tokens, samples=num_tokens == sequence.num_uncomputed_tokens)

    def _reserve(self, sequence: Sequence, num_tokens: int, preempted: list[Sequence]) -> bool:
        """Blocks for the next `num_tokens`, preempting from the young end if need be; False if it had to preempt itself."""
        while True:
            try:
                self.cache.grow(sequence.block_table, sequence.num_computed_tokens + num_tokens)
                return True
            except OutOfBlocks:
                victim = self.running[-1]  # never one already scheduled in this step: those are all older
                self._preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    return False

    def _admit(self, sequence: Sequence) -> bool:
        """Take the blocks of all its known tokens, or nothing."""
        table = self.cache.match_prefix(sequence.token_ids)
        num_cached = len(table) * self.cache.block_size
        missing = self.cache.blocks_for(len(sequence.token_ids)) - len(table)
        watermark = self.config.watermark_blocks if self.running else 0
        if missing + watermark > self.cache.num_available:
            self.cache.release(table)  # a failed admission keeps nothing
            return False
        self.cache.grow(table, len(sequence.token_ids))
        sequence.block_table = table
        sequence.num_computed_tokens = sequence.num_cached_tokens = num_cached
        sequence.status = SequenceStatus.RUNNING
        self.running.append(sequence)
        return True

    def _book(self, share: ScheduledSequence, tokens: Sampled) -> Booked:
        """Count and append what a step brought a sequence; returns what is kept of it, and why the request ends, if it does."""
        sequence = share.sequence
        if sequence.status is not SequenceStatus.RUNNING:  # aborted while the step was computed: its tokens are dropped
            return share, (), None
        if isinstance(tokens, NumericalError):
            sequence.error, tokens = str(tokens), []
            reason: FinishReason | None = FinishReason.ERROR
        else:
            assert bool(tokens) == share.samples, "a chunk samples exactly if it reaches the end of the known tokens"
            reason = None
        sequence.num_computed_tokens += share.num_tokens
        reason = reason or self._append(sequence, tokens)
        if sequence.num_computed_tokens >= sequence.num_prompt_tokens > sequence.num_computed_tokens - share.num_tokens:
            self._keep(sequence, reason)  # the prompt is complete: others may share it from now on
        return share, tuple(tokens), reason

    def _append(self, sequence: Sequence, tokens: list[int]) -> FinishReason | None:
        """Append sampled tokens one by one, and cut `tokens` behind the one that ends the request."""
        for i, token in enumerate(tokens):
            sequence.token_ids.append(token)
            if reason := sequence.finish_reason_after(token):
                del tokens[i + 1 :]
                return reason
        return None

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the front of the queue; its sampled tokens stay, what was computed is computed again."""
        self._keep(sequence)
        self._leave(sequence, SequenceStatus.WAITING)
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
            sequence.status = SequenceStatus.FINISHED
        else:
            self._keep(sequence, reason)
            self._leave(sequence, SequenceStatus.FINISHED)
        sequence.finish_reason = reason

    def _leave(self, sequence: Sequence, status: SequenceStatus) -> None:
        self.running.remove(sequence)
        self.cache.release(sequence.block_table)
        sequence.status = status

    def _keep(self, sequence: Sequence, reason: FinishReason | None = None) -> None:
        """Offer what is computed to the prefix cache; not after an error, whose NaN would reach every later hit."""
        if reason is not FinishReason.ERROR:
            self.cache.keep(sequence.token_ids[: sequence.num_computed_tokens], sequence.block_table)

    def _close(self, output: SchedulerOutput, records: tuple[ScheduledRecord, ...], finished: list[Sequence]) -> None:
        """Count the step, and tell the observer."""
        idle_reason = ""
        if not output.scheduled:
            self.num_empty_steps += 1
            idle_reason = "no waiting request fits" if self.has_unfinished else "nothing to do"
        step, self.num_steps = self.num_steps, self.num_steps + 1
        if self._observer is None:
            return
        record = StepRecord(
            step=step,
            arrived=tuple(self._arrived),
            scheduled=records,
            preempted=tuple(s.request_id for s in output.preempted),
            finished=tuple(s.request_id for s in finished),
            aborted=tuple(self._aborted),
            waiting=len(self.waiting),
            running=len(self.running),
            free_blocks=self.cache.allocator.num_free,
            cached_blocks=self.cache.prefix_cache.num_evictable,
            used_blocks=self.cache.num_used,
            idle_reason=idle_reason,
        )
        self._arrived.clear()
        self._aborted.clear()
        self._observer(record)  # last: whatever an observer does, the books are closed


def _record(share: ScheduledSequence, tokens: tuple[int, ...], reason: FinishReason | None) -> ScheduledRecord:
    sequence = share.sequence
    ended = reason or sequence.finish_reason
    return ScheduledRecord(
        request_id=sequence.request_id,
        num_tokens=share.num_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        num_tokens_known=len(sequence.token_ids),
        sampled=tokens,
        block_ids=tuple(sequence.block_table),
        state=ended.value if ended else "running",
    )
