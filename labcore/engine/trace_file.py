"""A recorded run: how the engine was set up, the record of every step, and what the tokens say. As lines of JSON, in a file.

The recorder is any observer of the engine; off, it costs nothing, since no record is made then:

    >>> records = []
    >>> llm = LLM("lab", observer=records.append)
    >>> _ = llm.generate("hello")
    >>> trace = trace_of(llm.engine, records)
    >>> trace.text(trace.steps[0].arrived[0].prompt[0])
    'he'

The first line names the schema and its version, the model and the configuration. Each further line is a `StepRecord`,
field by field, and `pieces`: the text of the token ids that occur in it first. A file is written line by line, so one
whose writer was stopped is a whole trace up to there. A reader refuses a version it does not know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO, get_args, get_origin, get_type_hints

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidConfig, InvalidTrace
from labcore.core.speculative_config import SpeculativeConfig
from labcore.core.trace import ArrivalRecord, ScheduledRecord, StepRecord
from labcore.engine.llm_engine import LLMEngine
from labcore.loaders.tokenizer import Tokenizer
from labcore.model.llama import LlamaModel

SCHEMA, VERSION = "labcore.trace", 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A run: `pieces` is the text of each token id that occurs (none where no tokenizer was there)."""

    model: str
    config: EngineConfig
    steps: tuple[StepRecord, ...]
    pieces: Mapping[int, str] = field(default_factory=dict)

    @property
    def arrivals(self) -> tuple[ArrivalRecord, ...]:
        """The requests, in the order in which they were queued."""
        return tuple(arrival for step in self.steps for arrival in step.arrived)

    def text(self, token_id: int) -> str:
        """What a token says; `#7` where nothing is known of token 7."""
        return self.pieces.get(token_id, f"#{token_id}")


def trace_of(engine: LLMEngine, steps: Iterable[StepRecord]) -> Trace:
    """The trace of an engine whose observer has kept these records."""
    steps, pieces = tuple(steps), _Pieces(engine.model.tokenizer)
    known: dict[int, str] = {}
    for step in steps:
        known |= pieces.new_in(step)
    return Trace(model=engine.model.config.name, config=engine.config, steps=steps, pieces=known)


def trace_writer(file: TextIO, model: LlamaModel, config: EngineConfig) -> Callable[[StepRecord], None]:
    """Write the first line now; returns the observer that writes one line more for every step."""
    pieces = _Pieces(model.tokenizer)

    def line(entry: dict[str, Any]) -> None:
        text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"), default=lambda number: number.item())  # numpy's
        file.write(text + "\n")
        file.flush()

    line({"schema": SCHEMA, "version": VERSION, "model": model.config.name, "config": asdict(config)})
    return lambda step: line(
        step._asdict()
        | {
            "arrived": [asdict(arrival) for arrival in step.arrived],
            "scheduled": [share._asdict() for share in step.scheduled],
            "pieces": pieces.new_in(step),
        }
    )


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a file of traces. InvalidTrace names the line that is wrong; a last line cut short by a stopped writer is left out."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidTrace(f"{os.fspath(path)}: cannot be read: {error}") from None
    steps: list[StepRecord] = []
    pieces: dict[int, str] = {}
    line_number = 1
    try:
        model, config = _header(json.loads(lines[0]))
        for line in lines[1:-1]:  # behind the last line end: nothing, or a line cut short
            line_number += 1
            entry = json.loads(line)
            pieces |= {int(token): str(text) for token, text in entry.pop("pieces").items()}
            steps.append(_step(entry))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, InvalidConfig) as error:
        where = f"{os.fspath(path)}, line {line_number}"
        raise InvalidTrace(f"{where}: {type(error).__name__}: {error}; expected {SCHEMA}, version {VERSION}") from None
    return Trace(model=model, config=config, steps=tuple(steps), pieces=pieces)


def _header(entry: dict[str, Any]) -> tuple[str, EngineConfig]:
    if not isinstance(entry, dict) or entry.get("schema") != SCHEMA:
        raise ValueError("not a trace")
    if type(entry["version"]) is not int or entry["version"] != VERSION:
        raise ValueError(f"version {entry['version']!r}")
    config = entry["config"]
    return str(entry["model"]), EngineConfig(
        cache=CacheConfig(**config["cache"]), scheduler=SchedulerConfig(**config["scheduler"]),
        speculative=SpeculativeConfig(**config["speculative"]), seed=config["seed"],
    )  # fmt: skip


def _step(entry: dict[str, Any]) -> StepRecord:
    scheduled = tuple(_record(ScheduledRecord, share) for share in entry.pop("scheduled"))
    arrived = tuple(_record(ArrivalRecord, arrival | {"params": _frozen(arrival["params"])}) for arrival in entry.pop("arrived"))
    return _record(StepRecord, entry | {"scheduled": scheduled, "arrived": arrived})


def _record(kind: type, entry: dict[str, Any]) -> Any:
    """A record of this kind, every field present and of its type."""
    entry, hints = _frozen(entry), get_type_hints(kind)
    for name, hint in hints.items():
        if not _fits(entry[name], hint):
            raise TypeError(f"{name} is {entry[name]!r:.60}")
    return kind(**entry)


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is tuple:  # of any number of one kind
        return isinstance(value, tuple) and all(_fits(element, get_args(hint)[0]) for element in value)
    return isinstance(value, dict) if get_origin(hint) is Mapping else type(value) is hint


def _frozen(entry: dict[str, Any]) -> dict[str, Any]:
    """Lists of JSON as the tuples they were."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return {name: frozen(value) for name, value in entry.items()}


def _token_ids(step: StepRecord) -> Iterator[int]:
    for arrival in step.arrived:
        yield from arrival.prompt
    for share in step.scheduled:
        yield from share.sampled


class _Pieces:
    """The text of token ids, each told once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._told = tokenizer, set[int]()

    def new_in(self, step: StepRecord) -> dict[int, str]:
        new = [token for token in dict.fromkeys(_token_ids(step)) if token not in self._told]
        self._told.update(new)
        return {token: self._tokenizer.token_bytes(token).decode("utf-8", "replace") for token in new}
