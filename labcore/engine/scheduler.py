"""Who runs in this step, how many tokens each, in which blocks. Bookkeeping only: no arrays, no model.

The rules, each paid for by somebody's outage:
- One budget of tokens per step, oldest running sequence first; chunked prefill, decode and recomputation are the same thing.
- What a step promises is reserved in that step, so nothing downstream can run out of blocks.
- A waiting request is admitted when the blocks of *all* its known tokens are there (and a watermark besides), and takes
  them at once. The watermark never holds back an empty engine.
- Memory comes from free blocks, then from cached ones nobody holds, then from the youngest running sequence, which
  goes back to the front of the queue with nothing computed. So the oldest running sequence always advances.
- A request that can never fit is refused when it is added.
- Several answers to one prompt part when it is computed; they share its blocks until one of them writes.

"Oldest" is by rank: priority, then age. Source: Yu et al. 2022 (Orca), Kwon et al. 2023 (vLLM), Agrawal et al. 2024 (Sarathi).
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from operator import attrgetter

from labcore.core.config import SchedulerConfig
from labcore.core.errors import NumericalError, OutOfBlocks
from labcore.core.trace import StepRecord
from labcore.engine.deadlines import Deadlines
from labcore.engine.plan import Progress, Sampled, ScheduledSequence, SchedulerOutput
from labcore.engine.policies import POLICIES
from labcore.engine.proposer import NoProposer, Proposer
from labcore.engine.recorder import NoRecorder, Recorder, StepRecorder
from labcore.engine.refusal import refuse
from labcore.engine.sequence import FinishReason, Sequence, SequenceStatus
from labcore.engine.share import share_of
from labcore.kv.paged_cache import Copy, PagedCache

by_rank = attrgetter("rank")


class Scheduler:
    """`schedule` plans a step, `update` books what it computed. No OutOfBlocks leaves it."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: PagedCache,
        observer: Callable[[StepRecord], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        proposer: Proposer | None = None,
    ) -> None:
        """observer: called with each step's record. clock: of deadlines. proposer: says how many guesses a sequence gets."""
        self.config, self.cache = config, cache
        self.proposer: Proposer = proposer or NoProposer()
        self.waiting: list[Sequence] = []  # both by rank, the first first
        self.running: list[Sequence] = []
        self.live: dict[str, list[Sequence]] = {}  # by request, its unfinished sequences
        self.num_steps = self.num_empty_steps = self.num_preemptions = self._num_arrived = 0
        self._num_seats = 0  # sequences that run, and answers that will part from them
        self._chunk_limit, self._policy = config.chunk_limit, POLICIES[config.policy]
        self._clock = clock
        self._deadlines = Deadlines(self.live)
        self.expired: list[Sequence] = []  # ended by their deadlines, and not told by `update` yet
        self._copies: list[Copy] = []  # planned, and not known to be made: `update` has not been called
        self._recorder: Recorder = NoRecorder() if observer is None else StepRecorder(cache, observer)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises InvalidRequest, naming the numbers, if it can never run; then nothing has changed."""
        self._refuse(sequence)
        sequence.arrival = self._num_arrived
        self._num_arrived += 1
        insort(self.waiting, sequence, key=by_rank)
        self.live[sequence.request_id] = [sequence]
        self._deadlines.add(sequence)
        self._recorder.arrived(sequence)

    def schedule(self) -> SchedulerOutput:
        """Plan a step; all blocks it needs are in the tables when this returns."""
        self._expire()
        budget = self.config.max_num_batched_tokens
        scheduled: list[ScheduledSequence] = []
        yielded = self._yield_to_urgent() if self.waiting else []
        preempted: list[Sequence] = []
        for place, sequence in enumerate(running := list(self.running), 1):
            if budget == 0 or sequence.status is not SequenceStatus.RUNNING:
                break  # out of tokens, or preempted to make room for an older one, as are all behind it
            share = self._share(sequence, budget, len(running) - place, preempts=True)
            if not self._reserve(sequence, share.num_tokens, preempted, self._copies):
                break
            if share.num_tokens or share.samples:
                scheduled.append(share)
                budget -= share.num_tokens

        while self.waiting and budget and not preempted and self._num_seats < self.config.max_num_seqs:
            sequence = self._policy(self.waiting, self.cache.prefix_cache)
            if sequence in yielded or not self._admit(sequence):
                break
            share = self._share(sequence, budget, 0, preempts=False)
            self._copies += self.cache.reserve(sequence.block_table, *share.draft_span) if share.num_draft else []
            if share.num_tokens or share.samples:
                scheduled.append(share)
                budget -= share.num_tokens
        return SchedulerOutput(tuple(scheduled), (*yielded, *preempted), tuple(self._copies), tuple(self.expired))

    def update(self, output: SchedulerOutput, sampled: Iterable[Sampled]) -> list[Progress]:
        """Book the step: `sampled` has one entry per scheduled sequence.

        An entry is a list of tokens: none where the chunk did not reach the end, one for each answer that begins here; or the
        NumericalError that ends this request and no other. Returns what each sequence got; those that ended are among them.
        """
        expired, self.expired, self._copies = self.expired, [], []
        progress: list[Progress] = []
        for share, tokens in zip(output.scheduled, sampled, strict=True):
            progress += self._book(share, tokens)
        self._recorder.booked(progress)
        for one in progress:
            if one.reason is not None:
                self._finish(one.sequence, one.reason)
        idle_reason = "" if output.scheduled else "no waiting request fits" if self.has_unfinished else "nothing to do"
        self.num_empty_steps += not output.scheduled
        step, self.num_steps = self.num_steps, self.num_steps + 1
        self._recorder.closed(step, output, len(self.waiting), len(self.running), idle_reason)
        return [*(Progress(sequence, 0, (), FinishReason.TIMEOUT) for sequence in expired), *progress]

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> bool:
        """Give up a request wherever it is, with all its answers; False if it is not here (any more)."""
        sequences = list(self.live.get(request_id, ()))
        for sequence in sequences:
            self._finish(sequence, reason)
            self._recorder.gone(sequence, reason)
        return bool(sequences)

    def check(self) -> None:
        """The books balance between steps: queues, statuses, seats, tables, pool. Raises AssertionError."""
        for queue, status in ((self.waiting, SequenceStatus.WAITING), (self.running, SequenceStatus.RUNNING)):
            assert all(s.status is status for s in queue), f"a sequence among the {status.value} is not {status.value}"
            assert queue == sorted(queue, key=by_rank), f"the {status.value} do not stand in the order of rank"
        assert not any(s.block_table for s in self.waiting), "a waiting sequence holds blocks"
        seats = sum(1 + s.num_forks for s in self.running)
        assert self._num_seats == seats <= self.config.max_num_seqs, "more sequences run than allowed, or than are counted"
        live = [s for sequences in self.live.values() for s in sequences]
        assert sorted(live, key=by_rank) == sorted([*self.waiting, *self.running], key=by_rank), "a live sequence is in no queue"
        for s in self.running:
            assert 0 <= s.num_computed_tokens <= len(s.token_ids) <= s.max_length, f"{s.name}: counters out of order"
            assert len(s.block_table) >= self.cache.blocks_for(len(s.token_ids) - 1), f"{s.name}: a known token lacks a block"
        self.cache.check(s.block_table for s in self.running)

    def _refuse(self, sequence: Sequence) -> None:
        refuse(sequence, self.live, self.cache, self.config)

    def _expire(self) -> None:
        """End the requests whose deadline has passed."""
        for request_id in self._deadlines.due(self._clock()):
            self.expired += self.live[request_id]
            self.abort(request_id, FinishReason.TIMEOUT)

    def _share(self, sequence: Sequence, budget: int, others: int, preempts: bool) -> ScheduledSequence:
        """others: sequences behind it in this step, each of which goes before its guesses. preempts: if its draft needs it."""
        preempts &= self.proposer.whole(sequence)
        reach = self.cache.num_slots if preempts else self.cache.reach(sequence.block_table, sequence.num_computed_tokens)
        return share_of(sequence, self.proposer, len(self.running), self._chunk_limit, budget, budget - others, reach)

    def _yield_to_urgent(self) -> list[Sequence]:
        """Admit whoever is more urgent than somebody who runs, before anything is scheduled; those preempted for it."""
        yielded: list[Sequence] = []
        while self.waiting and self.running and self.running[-1].priority > self.waiting[0].priority:
            if not self._admit(self.waiting[0]):
                if not self._may_fit(self.waiting[0]):
                    break  # it would be in vain
                yielded.append(self.running[-1])
                self._preempt(self.running[-1])
        return yielded

    def _may_fit(self, urgent: Sequence) -> bool:
        """Whether there could be room for it without those who are less urgent."""
        lesser = [s for s in self.running if s.priority > urgent.priority]
        seats = self._num_seats + 1 + urgent.num_forks - sum(1 + s.num_forks for s in lesser)
        blocks = self.cache.num_available + len({block for s in lesser for block in s.block_table})
        hit = self.cache.prefix_cache.match_length(urgent.token_ids, urgent.domain) // self.cache.block_size
        return self.cache.blocks_for(len(urgent.token_ids)) - hit <= blocks and seats <= self.config.max_num_seqs

    def _reserve(self, sequence: Sequence, num_tokens: int, preempted: list[Sequence], copies: list[Copy]) -> bool:
        """Room for the next `num_tokens`, preempting from the young end if need be; False if it had to preempt itself."""
        start = sequence.num_computed_tokens
        while True:
            try:
                copies += self.cache.reserve(sequence.block_table, start, start + num_tokens)
                return True
            except OutOfBlocks:
                victim = self._victim()
                self._preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    return False

    def _victim(self) -> Sequence:
        """The youngest: never one already scheduled in this step, since those are older than the one that needs room."""
        return self.running[-1]

    def _match(self, sequence: Sequence) -> list[int]:
        """Nothing where the logits of the whole prompt are wanted."""
        scored = sequence.params.prompt_logprobs is not None
        return [] if scored else self.cache.match_prefix(sequence.token_ids, sequence.domain)

    def _fits(self, sequence: Sequence, table: list[int]) -> bool:
        """Whether there are seats, and blocks for all its known tokens besides those in the table."""
        watermark = self.config.watermark_blocks if self.running else 0
        missing = self.cache.blocks_for(len(sequence.token_ids)) - len(table)
        seats = self._num_seats + 1 + sequence.num_forks
        return missing + watermark <= self.cache.num_available and seats <= self.config.max_num_seqs

    def _admit(self, sequence: Sequence) -> bool:
        """Take the blocks of all its known tokens, or nothing."""
        table = self._match(sequence)
        if not self._fits(sequence, table):
            self.cache.release(table)
            return False  # a failed admission keeps nothing
        sequence.num_computed_tokens = sequence.num_cached_tokens = len(table) * self.cache.block_size
        self.cache.reserve(table, sequence.num_computed_tokens, len(sequence.token_ids))
        sequence.block_table = table
        self.cache.prefix_cache.stats.admitted(len(sequence.token_ids), sequence.num_cached_tokens)
        self.waiting[0].num_overtaken += self.waiting[0] is not sequence
        self._dequeue(sequence)
        self._run(sequence)
        return True

    def _dequeue(self, sequence: Sequence) -> None:
        del self.waiting[bisect_left(self.waiting, sequence.rank, key=by_rank)]

    def _run(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.RUNNING
        self._num_seats += 1 + sequence.num_forks
        insort(self.running, sequence, key=by_rank)

    def _book(self, share: ScheduledSequence, tokens: Sampled) -> list[Progress]:
        """Count and append what a step brought a sequence, and the answers that part from it."""
        sequence, count = share.sequence, share.num_tokens
        if sequence.status is not SequenceStatus.RUNNING:  # aborted while the step was computed: its tokens are dropped
            return [Progress(sequence, count, (), None)]
        sequence.num_computed_tokens += count - share.num_draft
        if isinstance(tokens, NumericalError):
            sequence.error = str(tokens)
            return [Progress(sequence, count, (), FinishReason.ERROR)]
        assert bool(tokens) == share.samples, "a chunk samples exactly if it reaches the end of the known tokens"
        if sequence.num_computed_tokens >= sequence.num_prompt_tokens > sequence.num_computed_tokens - count + share.num_draft:
            self._keep(sequence)  # the prompt is complete: others may share it from now on
        forks = self._part(sequence, tokens[-sequence.num_forks :]) if tokens and sequence.num_forks else ()
        own = tokens[: len(tokens) - len(forks)]
        (kept, reason), accepted = sequence.append(own), max(len(own) - 1, 0)
        sequence.num_computed_tokens += max(len(kept) - 1, 0)  # the last is known, and not computed
        if share.samples:
            self.proposer.learn(sequence, share.num_draft, accepted)
            self.cache.trim(sequence.block_table, sequence.num_computed_tokens)
        return [Progress(sequence, count, kept, reason, num_draft=share.num_draft, num_accepted=accepted), *forks]

    def _part(self, sequence: Sequence, tokens: list[int]) -> list[Progress]:
        """The other answers to a prompt, each with its first token; they share its blocks."""
        parted: list[Progress] = []
        for token in tokens:
            child = sequence.fork(len(parted) + 1, self.cache.fork(sequence.block_table))
            sequence.num_forks -= 1
            self._num_seats -= 1
            self._run(child)
            self.live[sequence.request_id].append(child)
            parted.append(Progress(child, 0, *child.append([token]), forked_from=sequence.name))
        return parted

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue; its sampled tokens stay, what was computed is computed again."""
        self._keep(sequence)
        self._leave(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        insort(self.waiting, sequence, key=by_rank)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is SequenceStatus.WAITING:
            self._dequeue(sequence)
        else:
            if reason is not FinishReason.ERROR:  # whose NaN would reach every later hit
                self._keep(sequence)
            self._leave(sequence)
        sequence.status, sequence.finish_reason = SequenceStatus.FINISHED, reason
        others = self.live[sequence.request_id]
        others.remove(sequence)
        if not others:
            del self.live[sequence.request_id]

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._num_seats -= 1 + sequence.num_forks
        self.cache.release(sequence.block_table)

    def _keep(self, sequence: Sequence) -> None:
        """Offer what is computed to the prefix cache."""
        self.cache.keep(sequence.token_ids[: sequence.num_computed_tokens], sequence.block_table, sequence.domain)
