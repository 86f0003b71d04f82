"""What a closed loop of clients does to a pool, for a number of blocks and of clients that the reader chooses.

>>> LivePressure()    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from ipywidgets import Dropdown, IntSlider  # type: ignore[import-untyped]

from labcore.bench.closed_loop import run_closed_loop
from labcore.bench.workload import ClosedLoop
from labcore.core.config import PREFIX_CACHES, CacheConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.scheduler import Scheduler
from labcore.kv.paged_cache import PagedCache
from labcore.widgets.live import Live, setting

COLUMNS, HEIGHT = 140, 100
USED, CACHED, THROWN = "#0072b2", "#56b4e9", "#d55e00"
SHAPE = {"num_requests": 64, "num_prefixes": 4, "prefix_tokens": 64, "own_tokens": 32, "new_tokens": 64}


def tokens_again(records: Iterable[StepRecord]) -> int:
    """Tokens that had been computed before, for the same sequence."""
    furthest: dict[str, int] = {}
    again = 0
    for record in records:
        for share in record.scheduled:
            start, before = share.num_computed_tokens - share.num_tokens, furthest.get(share.request_id, 0)
            again += max(min(before, share.num_computed_tokens) - start, 0)
            furthest[share.request_id] = max(before, share.num_computed_tokens)
    return again


class LivePressure(Live):
    """64 requests of 96 + 64 tokens; the picture is the pool over the steps."""

    def __init__(self) -> None:
        self.blocks = setting(IntSlider, "blocks", 48, min=12, max=96, step=4)
        self.clients = setting(IntSlider, "clients", 8, min=1, max=16)
        self.prefix_cache = setting(Dropdown, "prefix cache", "none", options=PREFIX_CACHES)
        super().__init__([self.blocks, self.clients, self.prefix_cache])

    def shown(self) -> Iterator[str]:
        total, records = self.blocks.value, list[StepRecord]()
        workload = ClosedLoop(seed=0, num_clients=self.clients.value, **SHAPE)
        pool = PagedCache(CacheConfig(num_blocks=total, prefix_cache=self.prefix_cache.value))
        outcome = run_closed_loop(workload, Scheduler(SchedulerConfig(), pool, records.append))
        counts = {"steps": outcome.num_steps, "preemptions": outcome.num_preemptions, "tokens computed": outcome.num_tokens,
                  "of these again": tokens_again(records)}  # fmt: skip
        held = [used + idle for used, idle in zip(outcome.in_use, outcome.cached, strict=True)]
        areas = _bars(held, CACHED, total) + _bars(outcome.in_use, USED, total)
        areas += _bars([len(record.preempted) for record in records], THROWN, 16)
        look = f'viewBox="0 0 {COLUMNS} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="The pool over the steps"'
        style = "width: 100%; max-width: 35em; height: 9em; border: 1px solid #999; background: #e4e4e4"
        yield (
            f"<div><b>{', '.join(f'{name}: {count:,}' for name, count in counts.items())}</b></div>"
            f"<svg {look} style='{style}'>{areas}</svg>"
            "<div>dark: blocks in use; light: kept by the prefix cache; orange: preemptions</div>"
        )


def _bars(heights: list[int], colour: str, top: int) -> str:
    """A path of COLUMNS bars at the most, each as high as the highest of its steps."""
    columns = min(len(heights), COLUMNS)
    ends = [i * len(heights) // columns for i in range(columns + 1)]
    tall = [HEIGHT * max(heights[a:b]) / top for a, b in pairwise(ends)]
    width = COLUMNS / columns
    path = "".join(f"M{i * width:.1f} {HEIGHT}v{-h:.0f}h{width:.2f}v{h:.0f}z" for i, h in enumerate(tall) if h)
    return f'<path fill="{colour}" d="{path}"/>'
