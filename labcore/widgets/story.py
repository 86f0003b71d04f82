"""A trace read request by request: in each step, who waits, who computes which positions, who holds which blocks.

The records say who ran. What a replay shows besides, this works out: who waited, who kept its blocks without running, what
is computed for the second time, and which of two requests of one name is meant.

    >>> for record, moments in story(trace):
    ...     print(record.step, [(trace_name, moment.doing) for trace_name, moment in moments.items()])    # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from labcore.core.errors import InvalidTrace
from labcore.core.trace import ScheduledRecord, StepRecord
from labcore.engine.trace_file import Trace

WAITS, PROMPT, DECODE, AGAIN, KEEPS = "waits", "prompt", "decode", "again", "keeps"  # keeps: its blocks, without running


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One request in one step. Positions start to computed - 1 are what the step computed for it."""

    request: int  # its place in the order of arrival
    doing: str = WAITS
    num_prompt_tokens: int
    start: int = 0
    computed: int = 0  # after the step
    known: int  # after the step
    sampled: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()  # held in this step; one that ended gives them back behind it
    taken: tuple[int, ...] = ()  # of these, new in this step
    cached: int = 0  # tokens that the prefix cache had, in the step in which it is taken in
    arrived: bool = False
    preempted: bool = False
    ended: str = ""  # why it ended with this step, if it did
    furthest: int = 0  # tokens ever computed

    @property
    def held(self) -> tuple[int, ...]:
        """The blocks it still holds after the step."""
        return () if self.ended else self.blocks


def names_of(trace: Trace) -> list[str]:
    """The requests in the order of arrival; the second of one name is `a (2)`."""
    names: list[str] = []
    for arrival in trace.arrivals:
        tries = (arrival.request_id if i == 1 else f"{arrival.request_id} ({i})" for i in count(1))
        names.append(next(name for name in tries if name not in names))
    return names


def story(trace: Trace) -> Iterator[tuple[StepRecord, dict[int, Moment]]]:
    """Each step, with a moment for every request that was there, by its place in the order of arrival.

    Raises InvalidTrace: no steps, steps that do not follow each other, a share of a request that never arrived.
    """
    if not trace.steps:
        raise InvalidTrace("the trace has no steps; record at least one (LLM(model, observer=records.append))")
    alive: dict[str, Moment] = {}
    arrivals = count()
    for step, record in enumerate(trace.steps, trace.steps[0].step):
        if record.step != step:
            raise InvalidTrace(f"step {record.step} comes where step {step} was expected; give all records of a run, in order")
        moments: dict[int, Moment] = {}
        alive = {name: _next(moment) for name, moment in alive.items()}
        aborted = list(record.aborted)
        _give_up(aborted, alive, moments)  # before the name is used again
        for arrival in record.arrived:
            _give_up(aborted, alive, moments)
            known = len(arrival.prompt)
            alive[arrival.request_id] = Moment(request=next(arrivals), num_prompt_tokens=known, known=known, arrived=True)
        _give_up(aborted, alive, moments)
        for name in record.preempted:
            if name in alive:
                alive[name] = replace(alive[name], doing=WAITS, start=0, computed=0, blocks=(), preempted=True)
        for share in record.scheduled:
            if share.state != "abort":  # given up while the step was computed: nothing came of it
                if share.request_id not in alive:
                    raise InvalidTrace(f"step {step}: request {share.request_id!r} runs and never arrived")
                alive[share.request_id] = _share(alive[share.request_id], share)
        moments |= {moment.request: moment for moment in alive.values()}
        alive = {name: moment for name, moment in alive.items() if not moment.ended}
        yield record, dict(sorted(moments.items()))


def _next(before: Moment) -> Moment:
    """The same request one step later, if nothing happens to it."""
    doing = KEEPS if before.blocks else WAITS
    return replace(
        before, doing=doing, start=before.computed, cached=0, taken=(), sampled=(), arrived=False, preempted=False
    )  # fmt: skip


def _give_up(aborted: list[str], alive: dict[str, Moment], moments: dict[int, Moment]) -> None:
    for name in list(aborted):
        if name in alive:
            gone = replace(alive.pop(name), doing=WAITS, blocks=(), ended="abort")
            moments[gone.request] = gone
            aborted.remove(name)


def _share(before: Moment, share: ScheduledRecord) -> Moment:
    start = share.num_computed_tokens - share.num_tokens
    again = start < before.furthest
    doing = AGAIN if again else PROMPT if start < before.num_prompt_tokens else DECODE
    return replace(
        before,
        doing=doing,
        start=start,
        computed=share.num_computed_tokens,
        known=share.num_tokens_known,
        sampled=share.sampled,
        blocks=share.block_ids,
        taken=tuple(block for block in share.block_ids if block not in before.blocks),
        cached=0 if before.blocks else start,
        ended="" if share.state == "running" else share.state,
        furthest=max(before.furthest, share.num_computed_tokens),
    )
