"""What is asked of an engine and when, so that it can be asked again: from a file of requests, or from a recorded run.

A workload is lines of JSON, one a request:

    {"prompt": "The capital of France is", "max_tokens": 8}
    {"prompt": [5, 6, 7], "step": 3, "n": 2, "temperature": 0.8, "seed": 1, "priority": 1, "gives_up": 9}

`step`: it arrives before this step. `gives_up`, `expires`: it is aborted, or its deadline passes, before that step. `id`: its
name. `priority` and `salt` as for `LLMEngine.add_request`; every other field is one of `SamplingParams`.

    >>> records = perform(load_model("lab"), trace.config, asked_in(trace))      # doctest: +SKIP
    >>> first_difference(trace.steps, records)                                   # doctest: +SKIP
    ''
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any

from labcore.core.config import EngineConfig
from labcore.core.errors import InvalidTrace, LabError
from labcore.core.trace import StepRecord
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.model_runner import ModelRunner
from labcore.engine.plan import Sampled, SchedulerOutput
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.sequence import answer_name
from labcore.engine.trace_file import Trace
from labcore.model.llama import LlamaModel

PARAMS = tuple(field.name for field in fields(SamplingParams))
STEPS = ("step", "gives_up", "expires")
LAST_STEP = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, and the steps before which something happens to it. leaves: its caller goes while that step is computed.

    turn: of those who give up before the same step, who goes first.
    """

    request_id: str
    prompt: str | list[int]
    params: SamplingParams
    step: int = 0
    gives_up: int | None = None
    leaves: int | None = None
    expires: int | None = None
    turn: int = 0
    priority: int = 0
    salt: str = ""


def read_workload(path: str | os.PathLike[str]) -> list[Asked]:
    """Raises InvalidTrace, naming the line that is wrong."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidTrace(f"{os.fspath(path)}: cannot be read: {error}") from None
    asked: list[Asked] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                asked.append(_asked(json.loads(line), f"request-{len(asked)}"))
            except (LabError, TypeError, ValueError, KeyError, RecursionError) as error:
                raise InvalidTrace(f"{os.fspath(path)}, line {number}: {error}") from None
    if not asked:
        raise InvalidTrace(f"{os.fspath(path)}: no request in it; expected a line of JSON for each")
    return asked


def _asked(entry: Any, name: str) -> Asked:
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str | list):
        raise ValueError('expected {"prompt": a text or a list of token ids, ...}')
    own = {field: entry[field] for field in ("prompt", "priority", "salt", *STEPS) if field in entry}
    if unknown := entry.keys() - {"id", *own, *PARAMS}:
        raise ValueError(f"unknown field {min(unknown)!r}")
    for field in STEPS:
        earliest = 0 if field == "step" else own.get("step", 0)
        if field in own and (type(own[field]) is not int or not earliest <= own[field] <= LAST_STEP):
            raise ValueError(
                f"{field} is {own[field]!r}; expected the number of a step, at most {LAST_STEP:,}, and none before it arrives"
            )
    if not isinstance(own.get("salt", ""), str) or not isinstance(entry.get("id", ""), str):
        raise ValueError("id and salt are texts")
    params = params_of({field: entry[field] for field in PARAMS if field in entry})
    return Asked(request_id=entry.get("id", name), params=params, **own)


def params_of(entry: Mapping[str, Any]) -> SamplingParams:
    """The parameters that JSON holds: its keys are texts, and those of logit_bias are token ids."""
    fields, bias = dict(entry), entry.get("logit_bias")
    if isinstance(bias, dict):
        fields["logit_bias"] = {int(token): value for token, value in bias.items()}
    return SamplingParams(**fields)


def asked_in(trace: Trace) -> list[Asked]:
    """The requests of a recorded run, with the steps in which they were given up."""
    asked: list[Asked] = []
    newest: dict[str, int] = {}  # by name, its place in `asked`

    def happened(name: str, what: str, step: int, turn: int = 0) -> None:
        if name in newest:
            place = newest[name]
            changed: dict[str, Any] = {what: step, "turn": turn}
            asked[place] = replace(asked[place], **changed)

    for record in trace.steps:
        gone = list(record.aborted)
        for arrival in record.arrived:
            if arrival.request_id in gone and arrival.request_id in newest:  # its name was free again
                happened(arrival.request_id, "gives_up", record.step, record.aborted.index(arrival.request_id))
                gone.remove(arrival.request_id)
            newest |= {answer_name(arrival.request_id, i): len(asked) for i in range(arrival.params["n"])}
            asked.append(
                Asked(
                    request_id=arrival.request_id, prompt=list(arrival.prompt), params=params_of(arrival.params),
                    step=record.step, priority=arrival.priority, salt=arrival.salt,
                )
            )  # fmt: skip
        within = {share.request_id for share in record.scheduled if share.state == "abort"}
        for name in gone:
            happened(name, "leaves" if name in within else "gives_up", record.step, record.aborted.index(name))
        for name in record.expired:
            happened(name, "expires", record.step)
    return asked


class _Leaving(ModelRunner):
    """The runner of an engine whose callers may go while it computes."""

    def __init__(self, engine: LLMEngine, leaving: dict[int, list[str]]) -> None:
        self.__dict__.update(vars(engine.runner))
        self._engine, self._leaving = engine, leaving

    def execute(self, output: SchedulerOutput) -> list[Sampled]:
        sampled = super().execute(output)
        for name in self._leaving.get(self._engine.scheduler.num_steps, ()):
            self._engine.abort(name)
        return sampled


def perform(model: LlamaModel, config: EngineConfig, asked: Sequence[Asked], num_steps: int = 0) -> Iterator[StepRecord]:
    """Run an engine that is asked all this, `num_steps` steps at the least; yields the record of each step.

    Time is counted in steps. Raises InvalidRequest where the engine refuses a request.
    """
    records: deque[StepRecord] = deque(maxlen=1)
    engine = LLMEngine(model, config, records.append, clock=lambda: engine.scheduler.num_steps)
    leaving: dict[int, list[str]] = {}
    giving_up: dict[int, list[Asked]] = {}
    for one in sorted(asked, key=lambda one: one.turn):
        if one.leaves is not None:
            leaving.setdefault(one.leaves, []).append(one.request_id)
        if one.gives_up is not None:
            giving_up.setdefault(one.gives_up, []).append(one)
    engine.runner = _Leaving(engine, leaving)
    ahead = deque(sorted(asked, key=lambda one: one.step))
    for step in count():
        if not ahead and not engine.has_unfinished and step >= num_steps:
            return
        going = list(giving_up.get(step, ()))
        while ahead and ahead[0].step <= step:
            one = ahead.popleft()
            used = [i for i, other in enumerate(going, 1) if other.request_id == one.request_id and other is not one]
            if used:  # its name was given up before: so were those whose turn came earlier, if they are here yet
                going = [other for other in going[: used[0]] if not engine.abort(other.request_id)] + going[used[0] :]
            timeout = None if one.expires is None else max(one.expires - step, 0)
            engine.add_request(one.request_id, one.prompt, one.params, priority=one.priority, timeout=timeout, salt=one.salt)
        for one in going:
            engine.abort(one.request_id)
        engine.step()
        yield records[-1]


def first_difference(before: Sequence[StepRecord], now: Sequence[StepRecord]) -> str:
    """Where two runs decide differently first, in words; nothing if they do not."""
    for old, new in zip(before, now, strict=False):
        for name, was, is_now in zip(StepRecord._fields, old, new, strict=True):
            if was != is_now:
                return f"step {old.step}: {name} was {was!r:.200}, and is {is_now!r:.200}"
    return "" if len(before) == len(now) else f"{len(before)} steps were recorded, and {len(now)} made"
