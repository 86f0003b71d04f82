"""Clients that send their next request when the last is answered, against a scheduler: with a model behind it, or an oracle.

A closed loop keeps an engine under pressure without ever flooding it: `num_clients` requests are there at any time.

    >>> scheduler = Scheduler(SchedulerConfig(), PagedCache(CacheConfig(num_blocks=512, prefix_cache="radix")))
    >>> run_closed_loop(PRESSURE, scheduler).finished
    320
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from labcore.bench.oracle import same_token, sequence
from labcore.bench.workload import ClosedLoop
from labcore.engine.plan import Sampled, SchedulerOutput
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import FinishReason, Sequence

Execute = Callable[[SchedulerOutput], list[Sampled]]


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    finished: int = 0
    timeouts: int = 0
    num_steps: int = 0
    num_empty_steps: int = 0
    num_tokens: int = 0  # computed
    num_preemptions: int = 0
    queries: int = 0  # admissions; one more for each return after a preemption
    hits: int = 0  # of these, those that found a prefix
    queried_tokens: int = 0
    hit_tokens: int = 0
    in_use: list[int] = field(default_factory=list)  # by step: blocks that sequences hold
    cached: list[int] = field(default_factory=list)  # by step: blocks that only the cache holds

    @property
    def hit_rate(self) -> float:
        """Admissions that found a prefix in the cache."""
        return self.hits / max(self.queries, 1)

    @property
    def tokens_per_step(self) -> float:
        """Tokens computed in a step that was not empty."""
        return self.num_tokens / max(self.num_steps - self.num_empty_steps, 1)


def run_closed_loop(
    workload: ClosedLoop, scheduler: Scheduler, execute: Execute = same_token, *, vocab_size: int = 1024, most_steps: int = 20_000
) -> Outcome:
    """Serve the workload; `most_steps` later at the latest it is given up, and what has not finished then is a timeout."""
    outcome, prompts = Outcome(), enumerate(workload.prompts(vocab_size))
    stats = scheduler.cache.prefix_cache.stats

    def greedy(number: int, prompt: list[int]) -> Sequence:
        params = SamplingParams(max_tokens=workload.new_tokens, temperature=0.0)
        return sequence(f"request-{number}", prompt, workload.new_tokens, params=params, seed=number)

    for number, prompt in islice(prompts, workload.num_clients):
        scheduler.add(greedy(number, prompt))
    while scheduler.has_unfinished and outcome.num_steps < most_steps:
        plan = scheduler.schedule()
        progress = scheduler.update(plan, execute(plan))
        outcome.num_steps += 1
        outcome.num_empty_steps += not plan.scheduled
        outcome.num_tokens += sum(share.num_tokens for share in plan.scheduled)
        outcome.in_use.append(scheduler.cache.num_used)
        outcome.cached.append(scheduler.cache.allocator.num_idle)
        for one in progress:
            if one.reason is not None:
                outcome.finished += one.reason is FinishReason.LENGTH
                if (following := next(prompts, None)) is not None:
                    scheduler.add(greedy(*following))
    outcome.timeouts = workload.num_requests - outcome.finished
    outcome.num_preemptions = scheduler.num_preemptions
    outcome.queries, outcome.hits = stats.queries, stats.hits
    outcome.queried_tokens, outcome.hit_tokens = stats.queried_tokens, stats.hit_tokens
    return outcome
