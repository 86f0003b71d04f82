"""The same requests under every combination of the engine's mechanisms, all books looked at in every step.

A setting is a cell of the matrix: prefix cache x chunk x pool x answers x policy x speculation. In each the answers, and every
bit of the logits that they were chosen from, must be those of a loop that knows none of this (`plain`). A `Watch` checks the
rules of a step and counts how often each held. A fault, put in the place of a part, must break a rule or change an answer
somewhere.

    >>> model = load_model("lab")
    >>> run_cell(model, Setting(prefix_cache="radix", n=3)).broken
    ''
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from labcore.bench.oracle import sequence
from labcore.core.config import CacheConfig, EngineConfig, SpeculativeConfig
from labcore.core.trace import StepRecord
from labcore.engine.model_runner import ModelRunner
from labcore.engine.plan import Progress, Sampled, SchedulerOutput
from labcore.engine.proposer import NoProposer
from labcore.engine.sampler import sample
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.scheduler import Scheduler, by_rank
from labcore.engine.sequence import Sequence, answer_name
from labcore.engine.speculative.choose import proposer_of
from labcore.lab.equivalence import all_logits
from labcore.lab.faults import SOUND, Fault
from labcore.lab.oracle import Guessing, varied_tokens
from labcore.model.llama import LlamaModel

BLOCK_SIZE, BUDGET, MOST_STEPS = 8, 128, 400
DIMENSIONS: dict[str, tuple[Any, ...]] = {  # the plain value of each stands first
    "prefix_cache": ("none", "radix", "hash"),
    "chunk": (None, 64, 16),
    "pool": ("ample", "tight"),
    "n": (1, 3),
    "policy": ("fcfs", "priority"),
    "speculative": ("off", "ngram", "draft"),
}
GUESSES = 3
SPECULATIVE = {
    "off": SpeculativeConfig(),
    "ngram": SpeculativeConfig(method="ngram", num_draft_tokens=GUESSES, min_ngram=1, max_ngram=2, adaptive=False),
    "draft": SpeculativeConfig(method="draft", num_draft_tokens=GUESSES, draft_layers=2, adaptive=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cell of the matrix. chunk: the most tokens of a sequence in a step. n: answers to each prompt."""

    prefix_cache: str = "none"
    chunk: int | None = None
    pool: str = "ample"
    n: int = 1
    policy: str = "fcfs"
    speculative: str = "off"

    @property
    def temperature(self) -> float:
        """Greedy where a draft model guesses: drawn guesses keep the law, and not the tokens."""
        return 0.0 if self.speculative == "draft" else 0.9

    @property
    def num_blocks(self) -> int:
        """A tight pool holds one long request and a part of another."""
        return 128 if self.pool == "ample" else 21 + 2 * (self.n - 1)

    @property
    def plainest(self) -> Setting:
        """The plainest cell that has the same answers."""
        return Setting(n=self.n, speculative="off" if self.temperature else self.speculative)

    @property
    def plainer(self) -> list[Setting]:
        """The cells with one mechanism fewer."""
        own = {name: getattr(self, name) for name in DIMENSIONS}
        return [Setting(**own | {name: values[0]}) for name, values in DIMENSIONS.items() if own[name] != values[0]]


SETTINGS = tuple(Setting(**dict(zip(DIMENSIONS, values, strict=True))) for values in product(*DIMENSIONS.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request of the matrix, and the step before which it comes."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    step: int
    priority: int
    among: tuple[int, ...] | None = None  # the only tokens of its answer: where they are few it repeats itself, and guesses stand

    def params(self, setting: Setting) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens, n=setting.n, temperature=setting.temperature, seed=self.step, ignore_eos=True,
            allowed_token_ids=self.among,
        )  # fmt: skip


def _asked() -> Iterator[Asked]:
    """Prompts that begin alike or are the same, of whole blocks and not, long and short; the urgent come last."""
    rng = np.random.default_rng(0)
    shared = tuple(map(int, rng.integers(256, 1024, 80)))
    own = [tuple(map(int, rng.integers(256, 1024, length))) for length in (5, 16, 2, 70)]
    prompts = [shared + own[0], shared[:32] + own[2], shared, own[3], shared, shared + own[1]]
    for i, (prompt, max_tokens) in enumerate(zip(prompts, (8, 12, 8, 24, 16, 8), strict=True)):
        name, among = "abcdef"[i], (300, 301, 302) if prompt is own[3] else None
        yield Asked(name=name, prompt=prompt, max_tokens=max_tokens, step=2 * i, priority=2 - i // 2, among=among)


REQUESTS = tuple(_asked())


class Watch:
    """The rules of a step, each counted when it is looked at. Raises Broken with the name of the first that does not hold."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._waited = 0  # steps since the first in rank last advanced

    def holds(self, rule: str, kept: bool) -> None:
        self.counts[rule] += 1
        if not kept:
            raise Broken(rule)

    def planned(self, scheduler: Scheduler, plan: SchedulerOutput) -> None:
        """Before the step is computed."""
        cache, size = scheduler.cache, scheduler.cache.block_size
        self.holds("no step is empty while a request is there", bool(plan.scheduled or not scheduler.has_unfinished))
        for share in plan.scheduled:
            sequence, start = share.sequence, share.sequence.num_computed_tokens
            self.holds("a share is one token or more", share.num_tokens >= 1)
            self.holds("a victim does not run", all(sequence is not victim for victim in plan.preempted))
            self.holds("all known tokens of who runs have blocks", len(sequence.block_table) * size >= len(sequence.token_ids))
            written = sequence.block_table[start // size : cache.blocks_for(start + share.num_tokens)]
            self.holds("a written block has one holder", all(cache.allocator.refcount(block) == 1 for block in written))

    def booked(self, scheduler: Scheduler, first: Sequence | None, computed: int) -> None:
        """After it. first: who stood first in rank before the step, with so many tokens computed."""
        pool = scheduler.cache
        self.holds("free + idle + used = total", _balances(pool.allocator.check))
        self.holds("references = tables + cache", _balances(lambda: pool.check(s.block_table for s in scheduler.running)))
        self.holds("queues, seats and counters agree", _balances(scheduler.check))
        if first is not None:
            self._waited = 0 if first.num_computed_tokens > computed else self._waited + 1
            self.holds("the first in rank advances", self._waited < 1)

    def ended(self, scheduler: Scheduler) -> None:
        self.holds("all requests end", not scheduler.has_unfinished)
        self.holds("at idle no block is held", scheduler.cache.num_used == 0)


class Broken(AssertionError):
    """A rule that did not hold."""


def _balances(check: Callable[[], None]) -> bool:
    try:
        check()
    except AssertionError:
        return False
    return True


def watched_step(scheduler: Scheduler, execute: Callable[[SchedulerOutput], list[Sampled]], watch: Watch) -> list[Progress]:
    """A step with all its rules."""
    first = min([*scheduler.running[:1], *scheduler.waiting[:1]], key=by_rank, default=None)
    computed = first.num_computed_tokens if first else 0
    plan = scheduler.schedule()
    watch.planned(scheduler, plan)
    progress = scheduler.update(plan, execute(plan))
    watch.booked(scheduler, first, computed)
    return progress


Answers = dict[str, tuple[list[int], list[np.ndarray]]]  # by name: tokens, and the logits each was chosen from


@dataclass(slots=True)
class Cell:
    """What came of a setting. broken: the first rule that did not hold, "an error" of the engine, or nothing."""

    answers: Answers = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)
    broken: str = ""

    def count(self, what: str) -> int:
        """Entries (`preempted`, `forked`, `copied`, `evicted`) or tokens (`hit_tokens`, `num_tokens`) of all records."""
        values = [getattr(record, what) for record in self.records]
        return sum(value if isinstance(value, int) else len(value) for value in values)

    @property
    def guesses(self) -> tuple[int, int]:
        """How many were made, and how many of them stood."""
        shares = [share for record in self.records for share in record.scheduled]
        return sum(share.num_draft for share in shares), sum(share.num_accepted for share in shares)

    def difference(self, truth: Answers) -> float:
        """The largest difference of a logit; infinite where tokens differ, or are missing."""
        if any(self.answers.get(name, ([],))[0] != tokens for name, (tokens, _) in truth.items()):
            return float("inf")
        pairs = [pair for name, (_, rows) in truth.items() for pair in zip(self.answers[name][1], rows, strict=True)]
        return max(float(np.abs(own.astype(np.float64) - row).max()) for own, row in pairs)


def plain(model: LlamaModel, asked: Asked, index: int, setting: Setting) -> tuple[list[int], list[np.ndarray]]:
    """Answer `index` of a request by the loop that everybody writes first: no cache, no batch, no scheduler."""
    params, known, rows = asked.params(setting), list(asked.prompt), []
    for _ in range(asked.max_tokens):
        rows.append(all_logits(model, known)[-1])
        known.append(sample(rows[-1], params, seed=asked.step, position=len(known), sample_index=index))
    return known[len(asked.prompt) :], rows


def truth_of(model: LlamaModel, setting: Setting) -> Answers:
    """What this cell must say, and every other with as many answers at the same temperature."""
    return {answer_name(asked.name, i): plain(model, asked, i, setting) for asked in REQUESTS for i in range(setting.n)}


def run_cell(
    model: LlamaModel | None,
    setting: Setting,
    watch: Watch | None = None,
    fault: Fault = SOUND,
    runner: type[ModelRunner] = ModelRunner,
) -> Cell:
    """Serve the requests in this setting; with a fault in it, until the fault is noticed.

    model: None for an oracle in its place, which leaves the rules and no answers to compare.
    """
    watch, cell = watch or Watch(), Cell()
    config = EngineConfig(
        cache=CacheConfig(num_blocks=setting.num_blocks, block_size=BLOCK_SIZE), speculative=SPECULATIVE[setting.speculative]
    )
    proposer = proposer_of(config, model) if model else NoProposer() if setting.speculative == "off" else Guessing(GUESSES)
    scheduler, cell.records = fault.scheduler(
        setting.num_blocks, BLOCK_SIZE, setting.prefix_cache, max_num_batched_tokens=BUDGET, max_chunk_tokens=setting.chunk,
        policy=setting.policy, proposer=proposer,
    )  # fmt: skip
    engine = runner(model, config.cache, proposer) if model else None
    coming = list(REQUESTS)
    try:
        for step in range(MOST_STEPS):
            while coming and coming[0].step <= step:
                scheduler.add(sequence_of(coming.pop(0), setting))
            if not (coming or scheduler.has_unfinished):
                break
            watched_step(scheduler, lambda plan: execute(engine, plan, cell.answers) if engine else varied_tokens(plan), watch)
        watch.ended(scheduler)
    except Broken as rule:
        cell.broken = str(rule)
    except (AssertionError, IndexError, ValueError, RuntimeError) as error:
        cell.broken = f"an error: {type(error).__name__}"
    return cell


def sequence_of(asked: Asked, setting: Setting) -> Sequence:
    """A request as the scheduler takes it."""
    priority = asked.priority if setting.policy == "priority" else 0
    more = {"params": asked.params(setting), "seed": asked.step, "num_forks": setting.n - 1, "priority": priority}
    return sequence(asked.name, list(asked.prompt), asked.max_tokens, **more)


def execute(engine: ModelRunner, plan: SchedulerOutput, answers: Answers) -> list[Sampled]:
    """The runner's step; every row of logits is kept by the name of the answer that goes on from it."""
    sampled = engine.execute(plan)
    for share, tokens in zip(plan.scheduled, sampled, strict=True):
        assert isinstance(tokens, list)
        first = share.sequence
        of_each = [[token] for token in tokens] if share.num_samples > 1 else [tokens]  # answers part, or one goes on
        for index, own in enumerate(of_each[: share.num_samples], first.index):
            name = answer_name(first.request_id, index)
            ids, rows = answers.setdefault(name, ([], []))
            ids += own
            rows += [row.copy() for row in engine.rows[name][: len(own)]]
    return sampled
