"""An engine under whatever may happen to it, watched all the time: arrivals, aborts, deadlines, forks, priorities, tiny pools.

After every step all books are checked; every answer must be what its request says alone, to the last bit of its logits; and
there must be progress. What happens is drawn from a seed, so a violation can be repeated.

    >>> soak(load_model("lab"), seed=0, num_workloads=3).num_workloads
    3
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from labcore.core.config import POLICIES, PREFIX_CACHES, CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidRequest
from labcore.core.speculative_config import SpeculativeConfig
from labcore.core.trace import StepRecord
from labcore.engine.llm_engine import LLMEngine, RequestOutput
from labcore.engine.sampling_params import SamplingParams
from labcore.lab.equivalence import rows_of, run
from labcore.model.llama import LlamaModel

Answers = dict[str, tuple[tuple[int, ...], tuple[bytes, ...]]]  # by index: token ids, and the bits of the logits of each


class Violation(AssertionError):
    """Something that must never happen did."""


@dataclass(slots=True)
class Counts:
    """What a soak saw."""

    num_workloads: int = 0
    requests: int = 0
    answers: int = 0  # that ended by themselves, and were compared
    aborted: int = 0
    expired: int = 0
    refused: int = 0
    steps: int = 0
    tokens: int = 0
    preemptions: int = 0
    copies: int = 0
    hit_tokens: int = 0
    evicted_blocks: int = 0
    guesses: int = 0  # of the next tokens
    accepted: int = 0  # of these, right ones
    most_steps_without_progress: int = 0


class Truth:
    """What each request says alone, its prompt in one piece, in an ample pool without a prefix cache."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self.of = lru_cache(maxsize=1024)(self._of)

    def _of(self, prompt: tuple[int, ...], params: SamplingParams) -> Answers:
        pool = CacheConfig(num_blocks=16 + params.n * (len(prompt) + params.max_tokens) // 4)
        alone = run(self._model, {"a": (list(prompt), params)}, EngineConfig(cache=pool))
        return {
            name[1:]: (tuple(ids), tuple(row.tobytes() for row in alone.logits[name])) for name, ids in alone.token_ids.items()
        }


class Watched:
    """One engine and its requests. Every action checks all that can be checked after it; raises Violation."""

    def __init__(self, model: LlamaModel, config: EngineConfig, truth: Truth) -> None:
        self.now = 0.0
        self.counts = Counts(num_workloads=1)
        self.records: list[StepRecord] = []
        self.engine = LLMEngine(model, config, self._observe, clock=lambda: self.now)
        self._truth = truth
        self.asked: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}
        self._got: dict[str, tuple[list[int], list[bytes]]] = {}
        self._left: dict[str, int] = {}  # answers that have not ended
        self._idle_steps, self._arrivals, self._measure = 0, 0, (0, 0)

    def add(self, prompt: tuple[int, ...], params: SamplingParams, **how: Any) -> None:
        name = str(self.counts.requests)
        self.counts.requests += 1
        try:
            self.engine.add_request(name, list(prompt), params, **how)
        except InvalidRequest:
            self.counts.refused += 1
            return
        self.asked[name], self._left[name] = (prompt, params), params.n
        self._arrivals += 1

    def abort(self, name: str) -> None:
        self.counts.aborted += self.engine.abort(name)
        self.asked.pop(name, None)
        self._check()

    def step(self) -> None:
        outputs = self.engine.step()
        self._check()
        for output in outputs:
            self._take(output)
        self._progress()

    def finish(self) -> Counts:
        """Step until nothing is left; then nobody may hold anything."""
        while self.engine.has_unfinished:
            self.step()
        if self.asked or self.engine.cache.num_used:
            raise Violation(f"at the end: unanswered {sorted(self.asked)}, blocks in use {self.engine.cache.num_used}")
        return self.counts

    def _observe(self, record: StepRecord) -> None:
        counts = self.counts
        self.records.append(record)
        counts.steps += 1
        counts.tokens += record.num_tokens
        counts.preemptions += len(record.preempted)
        counts.copies += len(record.copied)
        counts.hit_tokens += record.hit_tokens
        counts.evicted_blocks += len(record.evicted)
        counts.expired += len(record.expired)
        counts.guesses += sum(share.num_draft for share in record.scheduled)
        counts.accepted += sum(share.num_accepted for share in record.scheduled)
        if not record.scheduled and record.running + record.waiting:
            raise Violation(f"step {record.step}: something waits or runs, and nothing was scheduled")

    def _check(self) -> None:
        try:
            self.engine.check()
        except AssertionError as error:
            raise Violation(str(error)) from error

    def _take(self, output: RequestOutput) -> None:
        """What is new in an answer; once it has ended by itself, all of it must be what it would have said alone."""
        if output.request_id not in self.asked:
            raise Violation(f"an answer to {output.request_id}, which nobody waits for")
        ids, rows = self._got.setdefault(output.name, ([], []))
        ids += output.token_ids
        rows += [row.tobytes() for row in rows_of(self.engine, output)]
        alone_ids, alone_rows = self._truth.of(*self.asked[output.request_id])[output.name[len(output.request_id) :]]
        timely = output.finish_reason != "timeout"
        end = len(alone_ids) if output.finished and timely and output.finish_reason != "kv_exhausted" else len(ids)
        if (tuple(ids), tuple(rows)) != (alone_ids[:end], alone_rows[:end]):
            raise Violation(f"request {output.name} says {ids}; alone it says {alone_ids}; reason {output.finish_reason}")
        if output.finished:
            self.counts.answers += timely
            del self._got[output.name]
            self._left[output.request_id] -= 1
            if not self._left[output.request_id]:
                del self.asked[output.request_id]

    def _progress(self) -> None:
        """(answers ended, tokens computed for whoever is first) must grow within a number of steps that is known beforehand."""
        scheduler, counts = self.engine.scheduler, self.counts
        first = min([*scheduler.running[:1], *scheduler.waiting[:1]], key=lambda s: s.rank, default=None)
        measure = (counts.answers + counts.expired + counts.aborted, first.num_computed_tokens if first else 0)
        grew = first is None or measure[0] > self._measure[0] or measure[1] > self._measure[1]
        self._idle_steps, self._arrivals = (0, 0) if grew else (self._idle_steps + 1, self._arrivals)
        self._measure = measure
        counts.most_steps_without_progress = max(counts.most_steps_without_progress, self._idle_steps)
        longest = max((s.max_length for live in scheduler.live.values() for s in live), default=0)
        if self._idle_steps > (2 + self._arrivals) * (longest + 2):
            raise Violation(f"no progress in {self._idle_steps} steps")


def soak(model: LlamaModel, seed: int = 0, num_workloads: int | None = None, minutes: float = inf) -> Counts:
    """Workloads seed, seed + 1, ... until there were enough or time is up. Raises Violation, naming the workload's seed."""
    truth, total, ends = Truth(model), Counts(), time.monotonic() + 60 * minutes
    while total.num_workloads != num_workloads and time.monotonic() < ends:
        workload_seed = seed + total.num_workloads
        try:
            counts = random_workload(model, truth, np.random.default_rng(workload_seed))
        except Exception as error:  # whatever an engine raises here is a violation, and its seed makes it again
            raise Violation(f"workload {workload_seed}: {type(error).__name__}: {error}") from error
        most = max(total.most_steps_without_progress, counts.most_steps_without_progress)
        sums = {name: value + getattr(total, name) for name, value in asdict(counts).items()}
        total = replace(Counts(**sums), most_steps_without_progress=most)
    return total


def random_workload(model: LlamaModel, truth: Truth, rng: np.random.Generator) -> Counts:
    """Everything about it is drawn: limits, pool, cache, policy, requests, and what happens in between."""
    watched = Watched(model, random_config(rng), truth)
    happen(watched, rng)
    return watched.finish()


def happen(watched: Watched, rng: np.random.Generator) -> None:
    """Requests, aborts, waits and steps, in an order that is drawn."""
    config, model = watched.engine.config, watched.engine.model
    shared = tuple(map(int, rng.integers(0, model.config.vocab_size, 40)))
    for _ in range(int(rng.integers(4, 24))):
        action = rng.random()
        if action < 0.35:
            prompt, params, how = random_request(rng, config, shared, model.config.vocab_size)
            watched.add(prompt, params, **how)
        elif action < 0.42 and watched.asked:
            watched.abort(str(rng.choice(sorted(watched.asked))))
        elif action < 0.47:
            watched.now += float(rng.choice([0.5, 5.0]))
        else:
            watched.step()


def random_config(rng: np.random.Generator) -> EngineConfig:
    cache = CacheConfig(
        block_size=int(rng.choice([1, 4, 16])), num_blocks=int(rng.integers(6, 40)), prefix_cache=str(rng.choice(PREFIX_CACHES))
    )
    scheduler = SchedulerConfig(
        max_num_batched_tokens=int(rng.choice([2, 17, 512])), max_num_seqs=int(rng.choice([3, 32])),
        max_chunk_tokens=[None, 1, 3, 16][int(rng.integers(4))], watermark_blocks=int(rng.choice([0, 1])),
        policy=str(rng.choice(POLICIES)),
    )  # fmt: skip
    speculative = SpeculativeConfig(
        method=str(rng.choice(["none", "ngram", "ngram", "draft"])), num_draft_tokens=int(rng.choice([1, 3, 8])),
        adaptive=bool(rng.random() < 0.3), min_ngram=1, draft_layers=int(rng.choice([1, 3])),
    )  # fmt: skip
    return EngineConfig(cache=cache, scheduler=scheduler, speculative=speculative)


def random_request(
    rng: np.random.Generator, config: EngineConfig, shared: tuple[int, ...], vocab_size: int
) -> tuple[tuple[int, ...], SamplingParams, dict[str, Any]]:
    """Greedy and seeded, one answer and several, with all rules and with none; half of them begin alike.

    Under a draft model all are greedy: drawn guesses keep the law, and not the tokens.
    """
    own = tuple(map(int, rng.integers(0, vocab_size, int(rng.integers(1, 12)))))
    prompt = shared[: int(rng.integers(1, len(shared)))] + own[:3] if rng.random() < 0.5 else own
    if rng.random() < 0.3:  # a text that repeats itself
        prompt = prompt[:5] * 3
    temperature = 0.0 if config.speculative.method == "draft" else float(rng.choice([0.0, 0.9]))
    params = SamplingParams(
        max_tokens=int(rng.integers(1, 10)), n=int(rng.choice([1, 1, 1, 2, 3])), temperature=temperature,
        top_k=int(rng.choice([0, 5])), seed=int(rng.integers(4)), ignore_eos=bool(rng.random() < 0.5),
    )  # fmt: skip
    if rng.random() < 0.3:
        said = tuple(prompt[-3:])  # so that the answer is guessed from the prompt
        params = replace(params, allowed_token_ids=said, presence_penalty=0.5, repetition_penalty=1.1, min_p=0.01)
    priority = int(rng.integers(3)) if config.scheduler.policy == "priority" else 0
    timeout = float(rng.choice([1.0, 20.0])) if rng.random() < 0.2 else None
    return prompt, params, {"priority": priority, "timeout": timeout, "salt": str(rng.choice(["", "", "x"]))}
