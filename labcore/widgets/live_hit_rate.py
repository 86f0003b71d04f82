"""What a prefix cache finds, for a workload and a pool that the reader makes: the scheduler runs it, with no model.

>>> LiveHitRate()    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator

from ipywidgets import IntSlider  # type: ignore[import-untyped]

from labcore.bench.oracle import drive, sequence
from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.scheduler import Scheduler
from labcore.engine.sequence import Sequence
from labcore.kv.paged_cache import PagedCache
from labcore.widgets.live import Live, setting

NUM_REQUESTS, AT_ONCE, NEW_TOKENS, BLOCK_SIZE = 48, 4, 8, 16
WIDTH, HEIGHT, FOUND, COMPUTED = 600, 120, "#56b4e9", "#e69f00"


def serve(num_prefixes: int, prefix_tokens: int, own_tokens: int, num_blocks: int) -> tuple[list[Sequence], list[StepRecord]]:
    """48 requests, at most four at a time; they begin with the prefixes in turn, and each goes on with tokens of its own."""
    records: list[StepRecord] = []
    cache = PagedCache(CacheConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE, prefix_cache="radix"))
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=AT_ONCE), cache, records.append)
    requests = []
    for i in range(NUM_REQUESTS):
        prompt = [1 + i % num_prefixes] * prefix_tokens + [1000 + i] * own_tokens
        requests.append(sequence(str(i), prompt, NEW_TOKENS))
        scheduler.add(requests[-1])
    drive(scheduler)
    return requests, records


class LiveHitRate(Live):
    """A column a request: the part of its prompt that was found stands below, the part that was computed above."""

    def __init__(self) -> None:
        self.prefixes = setting(IntSlider, "prefixes", 4, min=1, max=16)
        self.prefix = setting(IntSlider, "prefix tokens", 256, min=0, max=512, step=8)
        self.own = setting(IntSlider, "own tokens", 64, min=8, max=256, step=8)
        self.pool = setting(IntSlider, "pool (blocks)", 128, min=64, max=512, step=8)
        super().__init__([self.prefixes, self.prefix, self.own, self.pool])

    def shown(self) -> Iterator[str]:
        length = self.prefix.value + self.own.value
        requests, records = serve(self.prefixes.value, self.prefix.value, self.own.value, self.pool.value)
        column, bars = WIDTH / len(requests), []
        for i, request in enumerate(requests):
            found = HEIGHT * request.num_cached_tokens / length
            place = f'x="{i * column:.1f}" width="{column - 2:.1f}"'
            bars.append(f'<rect {place} y="0" height="{HEIGHT - found:.1f}" fill="{COMPUTED}"/>')
            bars.append(f'<rect {place} y="{HEIGHT - found:.1f}" height="{found:.1f}" fill="{FOUND}"/>')
        asked, hit = sum(r.queried_tokens for r in records), sum(r.hit_tokens for r in records)
        evicted, thrown = sum(len(r.evicted) for r in records), sum(len(r.preempted) for r in records)
        says = f"{hit:,} of {asked:,} tokens found: {100 * hit / asked:.0f}%; {evicted:,} blocks given up, {thrown} preemptions"
        yield (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" style="width: 100%; max-width: {WIDTH}px" role="img" aria-label="{says}">'
            f"{''.join(bars)}</svg><div>{says}</div>"
        )
