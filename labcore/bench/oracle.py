"""A scheduler without a model: an oracle answers each time the same, and requests end by their length alone.

Standard library only: it also runs in a browser.

    >>> scheduler = Scheduler(SchedulerConfig(), PagedCache(CacheConfig()))
    >>> scheduler.add(sequence("a", [1, 2, 3], new_tokens=4))
    >>> drive(scheduler)
    4
"""

from __future__ import annotations

from typing import Any

from labcore.engine.plan import Sampled, SchedulerOutput
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import FinishReason, Sequence

TOKEN = 1  # what the oracle always says


def same_token(plan: SchedulerOutput) -> list[Sampled]:
    """What the model would have sampled in this step."""
    return [[TOKEN] * share.num_samples for share in plan.scheduled]


def sequence(name: str, prompt: list[int], new_tokens: int, **more: Any) -> Sequence:
    """A request as the scheduler takes it. more: further fields, or others than these."""
    fields: dict[str, Any] = {
        "request_id": name, "token_ids": prompt, "num_prompt_tokens": len(prompt), "seed": 0, "stop_token_ids": frozenset(),
        "params": SamplingParams(max_tokens=new_tokens), "max_length": len(prompt) + new_tokens,
        "length_reason": FinishReason.LENGTH,
    }  # fmt: skip
    return Sequence(**fields | more)


def drive(scheduler: Scheduler, most_steps: int = 10_000) -> int:
    """Step until all is finished, `most_steps` at the most; returns the number of steps made."""
    begun = scheduler.num_steps
    while scheduler.has_unfinished and scheduler.num_steps - begun < most_steps:
        plan = scheduler.schedule()
        scheduler.update(plan, same_token(plan))
    return scheduler.num_steps - begun
