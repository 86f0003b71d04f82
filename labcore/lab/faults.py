"""The faults of schedulers and caches that stopped real engines or spoiled their answers, each in a few lines of its own.

They are what chapters break things with, and what a test that is worth something must find.

    >>> scheduler, records = FAULTS["cache that never yields"].scheduler(num_blocks=64, block_size=16)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Any

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.model_runner import ModelRunner
from labcore.engine.plan import Progress, Sampled, ScheduledSequence, SchedulerOutput
from labcore.engine.proposer import Proposer
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import Sequence as Request
from labcore.kv.paged_cache import Copy, PagedCache
from labcore.kv.prefix_cache import ANYONE, Domain, MakeCache
from labcore.kv.radix_cache import RadixCache


class AdmitsWithoutReserving(Scheduler):
    """Each request is compared with the same free blocks and takes none; whoever then finds no block waits for one."""

    def _admit(self, sequence: Request) -> bool:
        table = self._match(sequence)
        if not self._fits(sequence, table):
            self.cache.release(table)
            return False
        sequence.num_computed_tokens = sequence.num_cached_tokens = len(table) * self.cache.block_size
        sequence.block_table = table
        self.cache.prefix_cache.stats.admitted(len(sequence.token_ids), sequence.num_cached_tokens)
        self.waiting.remove(sequence)
        self._run(sequence)
        return True

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        kept = []
        for share in plan.scheduled:  # those admitted in this step have no blocks yet
            if self._reserve(share.sequence, share.num_tokens, [], []):
                kept.append(share)
        return SchedulerOutput(tuple(kept), plan.preempted, plan.copies, plan.expired)

    def _reserve(self, sequence: Request, num_tokens: int, preempted: list[Request], copies: list[Copy]) -> bool:
        start = sequence.num_computed_tokens
        missing = self.cache.blocks_for(start + num_tokens) - len(sequence.block_table)
        if missing > self.cache.num_available:
            return False
        copies += self.cache.reserve(sequence.block_table, start, start + num_tokens)
        return True


class AdmitsOnTheNextChunk(Scheduler):
    """A prompt is let in when its first chunk fits. It runs into the end of the pool, is thrown out, and begins again."""

    def _fits(self, sequence: Request, table: list[int]) -> bool:
        chunk = min(len(sequence.token_ids), len(table) * self.cache.block_size + self.config.chunk_limit)
        seats = self._num_seats + 1 + sequence.num_forks
        return self.cache.blocks_for(chunk) - len(table) <= self.cache.num_available and seats <= self.config.max_num_seqs

    def _admit(self, sequence: Request) -> bool:
        table = self._match(sequence)
        if not self._fits(sequence, table):
            self.cache.release(table)
            return False
        start = len(table) * self.cache.block_size
        self.cache.reserve(table, start, min(len(sequence.token_ids), start + self.config.chunk_limit))
        sequence.num_computed_tokens = sequence.num_cached_tokens = start
        sequence.block_table = table
        self.cache.prefix_cache.stats.admitted(len(sequence.token_ids), sequence.num_cached_tokens)
        self.waiting.remove(sequence)
        self._run(sequence)
        return True


class TakesAScheduledVictim(Scheduler):
    """Room is made at the expense of the oldest, whose share of this step is planned already: it runs without blocks."""

    def _victim(self) -> Request:
        return self.running[0]


class SpinsOnEmptySteps(Scheduler):
    """After a preemption nothing is admitted for a step; but a step that did nothing is not counted, so it never passes."""

    _resumes_at = 0

    def _preempt(self, sequence: Request) -> None:
        super()._preempt(sequence)
        self._resumes_at = self.num_steps + 2

    def _admit(self, sequence: Request) -> bool:
        return self.num_steps >= self._resumes_at and super()._admit(sequence)

    def update(self, output: SchedulerOutput, sampled: Iterable[Sampled]) -> list[Progress]:
        return super().update(output, sampled) if output.scheduled else []


class KeepsFallenGuesses(Scheduler):
    """What was computed of a draft counts as computed, whether it stood or fell."""

    def _book(self, share: ScheduledSequence, tokens: Sampled) -> list[Progress]:
        progress = super()._book(share, tokens)
        share.sequence.num_computed_tokens += share.num_draft - progress[0].num_accepted
        return progress


class NeverYields(PagedCache):
    """What the prefix cache has once taken it keeps: only free blocks are handed out."""

    @property
    def num_available(self) -> int:
        return self.allocator.num_free

    @property
    def num_used(self) -> int:
        return self.allocator.num_blocks - self.allocator.num_free - self.allocator.num_idle


class NoCapOnTheHit(PagedCache):
    """A prompt of whole blocks may be found whole: then no token is left whose logits could say what comes next."""

    def match_prefix(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> list[int]:
        return self.prefix_cache.match(self._whole_blocks(token_ids, len(token_ids)), domain)


class LockSkipsTheMatchedNode(RadixCache):
    """The lock begins at the parent: the node that was matched can be evicted while its blocks are used."""

    def match(self, token_ids: Tokens[int], domain: Domain = ANYONE) -> list[int]:
        path = [node.blocks[:shared] for node, shared in self._walk(token_ids, domain)]
        for blocks in path[:-1]:
            self._kept.allocator.share(blocks)
        return [block for blocks in path for block in blocks]


class CopyForgetsV(ModelRunner):
    """Copy-on-write that copies the keys of a block and leaves its values what they were."""

    def copy_blocks(self, copies: Sequence[Copy]) -> None:
        if copies:
            sources, destinations = map(list, zip(*copies, strict=True))
            self.kv[:, 0, destinations] = self.kv[:, 0, sources]


@dataclass(frozen=True, slots=True)
class Fault:
    """Which part is exchanged for a faulty one."""

    kind: type[Scheduler] = Scheduler
    pool: type[PagedCache] = PagedCache
    tree: MakeCache | None = None

    def scheduler(
        self,
        num_blocks: int,
        block_size: int = 16,
        prefix_cache: str = "none",
        proposer: Proposer | None = None,
        **limits: Any,
    ) -> tuple[Scheduler, list[StepRecord]]:
        """A scheduler with this fault over an empty pool, and the list of its records. limits: fields of SchedulerConfig."""
        records: list[StepRecord] = []
        config = CacheConfig(num_blocks=num_blocks, block_size=block_size, prefix_cache=prefix_cache)
        pool = self.pool(config, self.tree if prefix_cache == "radix" else None)
        return self.kind(SchedulerConfig(**limits), pool, records.append, proposer=proposer), records


SOUND = Fault()
FALLEN = Fault(kind=KeepsFallenGuesses)  # shows only where guesses are made
FAULTS = {
    "admission without reservation": Fault(kind=AdmitsWithoutReserving),
    "cache that never yields": Fault(pool=NeverYields),
    "admission on the next chunk": Fault(kind=AdmitsOnTheNextChunk),
    "victim already scheduled": Fault(kind=TakesAScheduledVictim),
    "no cap on the hit": Fault(pool=NoCapOnTheHit),
    "lock that skips the matched node": Fault(tree=LockSkipsTheMatchedNode),
    "spin on empty steps": Fault(kind=SpinsOnEmptySteps),
}
