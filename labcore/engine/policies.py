"""Who of those that wait is admitted next.

A policy is a function of the queue, which stands in the order of rank (priority, then age), and of the prefix cache.

    >>> POLICIES["fcfs"](queue, cache) is queue[0]      # doctest: +SKIP
    True
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List

from labcore.engine.sequence import Sequence
from labcore.kv.prefix_cache import PrefixCache

LOOK_AHEAD = 64  # requests that "lpm" compares; what stands behind them waits
MOST_OVERTAKEN = 16  # times that the first in the queue may be overtaken

Policy = Callable[[List[Sequence], PrefixCache], Sequence]


def first_in_rank(waiting: List[Sequence], cache: PrefixCache) -> Sequence:
    """The first of the queue: by age where all priorities are the same."""
    return waiting[0]


def longest_prefix(waiting: List[Sequence], cache: PrefixCache) -> Sequence:
    """The one with the longest prefix in the cache, the first of several; the first of the queue is not overtaken for ever."""
    if waiting[0].num_overtaken >= MOST_OVERTAKEN:
        return waiting[0]
    return max(waiting[:LOOK_AHEAD], key=lambda sequence: cache.match_length(sequence.token_ids, sequence.domain))


POLICIES: dict[str, Policy] = {"fcfs": first_in_rank, "priority": first_in_rank, "lpm": longest_prefix}
