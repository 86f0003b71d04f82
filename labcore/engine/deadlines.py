"""Requests that must end by a time, the soonest first; those that ended before it are forgotten in passing.

>>> deadlines = Deadlines(live={})
>>> deadlines.due(now=5.0)
[]
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from math import inf

from labcore.engine.sequence import Sequence

SLACK = 64  # entries of ended requests that are not worth a look


class Deadlines:
    """live: by request id, its sequences that have not ended."""

    def __init__(self, live: Mapping[str, list[Sequence]]) -> None:
        self._live = live
        self._heap: list[tuple[float, int, str]] = []  # (deadline, arrival, request id)

    def add(self, sequence: Sequence) -> None:
        if sequence.deadline < inf:
            heapq.heappush(self._heap, (sequence.deadline, sequence.arrival, sequence.request_id))
            if len(self._heap) > SLACK + 2 * len(self._live):
                self._heap = [entry for entry in self._heap if self._lives(entry)]
                heapq.heapify(self._heap)

    def due(self, now: float) -> list[str]:
        """The live requests whose deadline has passed; they are not told again."""
        late = []
        while self._heap and not now < self._heap[0][0]:
            entry = heapq.heappop(self._heap)
            if self._lives(entry):
                late.append(entry[2])
        return late

    def _lives(self, entry: tuple[float, int, str]) -> bool:
        """Whether the request of this entry has not ended: its id may be another's by now."""
        return any(sequence.arrival == entry[1] for sequence in self._live.get(entry[2], ()))
