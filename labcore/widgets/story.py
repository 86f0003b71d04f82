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
from labcore.core.trace import ArrivalRecord, ScheduledRecord, StepRecord
from labcore.engine.trace_file import Trace

WAITS, PROMPT, DECODE, AGAIN, KEEPS = "waits", "prompt", "decode", "again", "keeps"  # keeps: its blocks, without running


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One request in one step. Positions start to computed - 1 are what the step computed for it."""

    request: int  # its place among the `requests_of` its trace
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
    parted_from: int | None = None  # the request that it is another answer to, in the step in which they part
    preempted: bool = False
    ended: str = ""  # why it ended with this step, if it did
    furthest: int = 0  # tokens ever computed

    @property
    def held(self) -> tuple[int, ...]:
        """The blocks it still holds after the step."""
        return () if self.ended else self.blocks


def requests_of(trace: Trace) -> list[tuple[str, ArrivalRecord]]:
    """By place: the name to show, and the request as it arrived. A further answer to a request comes when it parts from it.

    The second of one name is `a (2)`.
    """
    found: list[tuple[str, ArrivalRecord]] = []
    newest: dict[str, ArrivalRecord] = {}
    for step in trace.steps:
        newest |= {arrival.request_id: arrival for arrival in step.arrived}
        newest |= {child: newest[parent] for parent, child in step.forked if parent in newest}
        names = {name for name, _ in found}
        for own in [*(arrival.request_id for arrival in step.arrived), *(child for _, child in step.forked if child in newest)]:
            name = next(name for i in count(1) if (name := own if i == 1 else f"{own} ({i})") not in names)
            names.add(name)
            found.append((name, newest[own]))
    return found


def names_of(trace: Trace) -> list[str]:
    return [name for name, _ in requests_of(trace)]


def story(trace: Trace) -> Iterator[tuple[StepRecord, dict[int, Moment]]]:
    """Each step, with a moment for every request that was there, by its place.

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
        _give_up(list(record.expired), alive, moments, "timeout")
        for name in record.preempted:
            if name in alive:
                alive[name] = replace(alive[name], doing=WAITS, start=0, computed=0, blocks=(), preempted=True)
        parents = {child: parent for parent, child in record.forked}
        for share in record.scheduled:
            if share.request_id in parents and parents[share.request_id] in alive:
                alive[share.request_id] = _fork(alive[parents[share.request_id]], share, next(arrivals))
            elif share.state != "abort":  # given up while the step was computed: nothing came of it
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
        before, doing=doing, start=before.computed, cached=0, taken=(), sampled=(), arrived=False, preempted=False,
        parted_from=None,
    )  # fmt: skip


def _give_up(names: list[str], alive: dict[str, Moment], moments: dict[int, Moment], why: str = "abort") -> None:
    for name in list(names):
        if name in alive:
            gone = replace(alive.pop(name), doing=WAITS, blocks=(), ended=why)
            moments[gone.request] = gone
            names.remove(name)


def _fork(parent: Moment, share: ScheduledRecord, place: int) -> Moment:
    """Another answer, in the step in which it parts: all that is computed is the parent's."""
    own = replace(parent, request=place, doing=KEEPS, start=share.num_computed_tokens, parted_from=parent.request)
    return replace(
        own, known=share.num_tokens_known, sampled=share.sampled, blocks=share.block_ids, taken=(), cached=0, arrived=False,
        ended="" if share.state == "running" else share.state,
    )  # fmt: skip


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
