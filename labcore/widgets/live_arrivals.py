"""Requests that arrive at random: what their rate, the budget and the seats do to waiting, steps and tokens a step.

>>> LiveArrivals()    # doctest: +SKIP
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ipywidgets import FloatSlider, IntSlider  # type: ignore[import-untyped]

from labcore.bench.oracle import same_token, sequence
from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.scheduler import Scheduler
from labcore.kv.paged_cache import PagedCache
from labcore.widgets.live import Live, setting

NUM_REQUESTS, WIDTH, HIGH, TOKENS, WAITING = 60, 480, 60, "#56b4e9", "#d55e00"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes before step `step`: so many tokens of prompt, so many wanted."""

    step: int
    prompt: int
    answer: int


def random_arrivals(rate: float, seed: int = 0) -> list[Arrival]:
    """NUM_REQUESTS of them, `rate` a step on average (a Poisson process); only the steps depend on the rate."""
    rng, now, arrivals = random.Random(seed), 0.0, []
    for _ in range(NUM_REQUESTS):
        now += rng.expovariate(1.0) / rate
        arrivals.append(Arrival(int(now), rng.randint(4, 32), rng.randint(2, 24)))
    return arrivals


def serve(arrivals: Sequence[Arrival], limits: SchedulerConfig) -> list[StepRecord]:
    """Run them over a token oracle, in a pool that is never short. arrivals: by step; the i-th is the request named str(i)."""
    records: list[StepRecord] = []
    scheduler = Scheduler(limits, PagedCache(CacheConfig(num_blocks=1 << 14)), records.append)
    num_added = 0
    while num_added < len(arrivals) or scheduler.has_unfinished:
        while num_added < len(arrivals) and arrivals[num_added].step <= scheduler.num_steps:
            one = arrivals[num_added]
            scheduler.add(sequence(str(num_added), [1] * one.prompt, one.answer))
            num_added += 1
        plan = scheduler.schedule()
        scheduler.update(plan, same_token(plan))
    return records


def waits(records: Sequence[StepRecord]) -> list[int]:
    """For each request, in the order of arrival, the steps that passed before the first that ran it."""
    arrived = {arrival.request_id: record.step for record in records for arrival in record.arrived}
    begun: dict[str, int] = {}
    for record in records:
        for share in record.scheduled:
            begun.setdefault(share.request_id, record.step)
    return [begun[name] - step for name, step in arrived.items()]


class LiveArrivals(Live):
    """The same requests always; they come faster or slower, and find more or less room."""

    def __init__(self) -> None:
        self.rate = setting(FloatSlider, "rate", 0.4, min=0.05, max=1.5, step=0.05)
        self.budget = setting(IntSlider, "budget", 32, min=4, max=128, step=4)
        self.seats = setting(IntSlider, "seats", 8, min=1, max=32)
        super().__init__([self.rate, self.budget, self.seats])

    def shown(self) -> Iterator[str]:
        limits = SchedulerConfig(max_num_batched_tokens=self.budget.value, max_num_seqs=self.seats.value)
        records = serve(random_arrivals(self.rate.value), limits)
        waited, tokens = waits(records), [record.num_tokens for record in records]
        busy = sum(map(bool, tokens))
        pictures = _bars("tokens", tokens, TOKENS) + _bars("waiting", [record.waiting for record in records], WAITING)
        yield (
            f"<div>{NUM_REQUESTS} requests in {len(records):,} steps, {len(records) - busy:,} of them empty. They waited "
            f"{sum(waited) / len(waited):.1f} steps on average, {max(waited)} at the most. "
            f"<b>{sum(tokens) / busy:.1f} tokens a step</b> that was not empty.</div>{pictures}"
        )


def _bars(name: str, values: Sequence[int], colour: str) -> str:
    """A bar a step."""
    most, unit = max(*values, 1), WIDTH / len(values)
    bars = (
        f'<rect x="{i * unit:.1f}" y="{HIGH - HIGH * value / most:.1f}" width="{unit:.1f}" height="{HIGH * value / most:.1f}"/>'
        for i, value in enumerate(values) if value
    )  # fmt: skip
    look = f'viewBox="0 0 {WIDTH} {HIGH}" role="img" fill="{colour}" style="width: 100%; max-width: {WIDTH}px"'
    label = f"{name}, step by step; the tallest bar is {max(values):,}"
    return f'<div><small>{label}</small></div><div><svg {look} aria-label="{label}">{"".join(bars)}</svg></div>'
