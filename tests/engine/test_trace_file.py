"""A trace: every field survives the file, in any cut; damage is named; without an observer nothing is recorded."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labcore.engine.recorder
from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidTrace
from labcore.core.trace import StepRecord
from labcore.engine.llm import LLM
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.trace_file import Trace, read_trace, trace_of, trace_writer
from labcore.model.llama import LlamaModel

PROMPTS = ["to be, or not to be", "é and 東京", "once upon a time there was"]
TIGHT = EngineConfig(
    cache=CacheConfig(num_blocks=8, block_size=4), scheduler=SchedulerConfig(max_num_batched_tokens=7, watermark_blocks=0)
)


def recorded(model: LlamaModel, config: EngineConfig = TIGHT) -> tuple[LLMEngine, list[StepRecord]]:
    """An engine that has run three requests through preemptions, and given up a fourth."""
    records: list[StepRecord] = []
    engine = LLMEngine(model, config, records.append)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, SamplingParams(max_tokens=9, temperature=0.9, seed=i, ignore_eos=True))
    engine.add_request("given up", "hello", SamplingParams(temperature=0.0))
    engine.step()
    engine.abort("given up")
    while engine.has_unfinished:
        engine.step()
    return engine, records


def text_of(engine: LLMEngine, records: list[StepRecord]) -> str:
    """What the observer writes, line by line."""
    file = io.StringIO()
    write = trace_writer(file, engine.model, engine.config)
    for record in records:
        write(record)
    return file.getvalue()


def read_text(text: str | bytes, folder: Path) -> Trace:
    path = folder / "damaged.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def run(lab_model: LlamaModel) -> tuple[LLMEngine, list[StepRecord]]:
    return recorded(lab_model)


@pytest.fixture(scope="module")
def trace(run: tuple[LLMEngine, list[StepRecord]]) -> Trace:
    return trace_of(*run)


@pytest.fixture(scope="module")
def written(run: tuple[LLMEngine, list[StepRecord]]) -> str:
    return text_of(*run)


def test_a_trace_holds_what_happened(trace: Trace, lab_model: LlamaModel) -> None:
    assert [arrival.request_id for arrival in trace.arrivals] == ["0", "1", "2", "given up"]
    assert [arrival.prompt for arrival in trace.arrivals[:3]] == [tuple(lab_model.tokenizer.encode(p)) for p in PROMPTS]
    assert trace.arrivals[1].params["seed"] == 1 and trace.arrivals[1].params["max_tokens"] == 9
    assert any(step.preempted for step in trace.steps)
    assert [name for step in trace.steps for name in step.aborted] == ["given up"]
    assert [step.step for step in trace.steps] == list(range(len(trace.steps)))
    sampled = {token for step in trace.steps for share in step.scheduled for token in share.sampled}
    prompts = {token for arrival in trace.arrivals for token in arrival.prompt}
    assert set(trace.pieces) == sampled | prompts
    assert "".join(map(trace.text, trace.arrivals[0].prompt)) == PROMPTS[0]
    assert trace.text(10**6) == "#1000000"


def test_a_trace_gives_the_blocks_of_those_who_finish(trace: Trace) -> None:
    """A request's last record shows the blocks it held in that step, and why it ended."""
    for step in trace.steps:
        for share in step.scheduled:
            assert share.state == ("length" if share.request_id in step.finished else "running")
            assert len(share.block_ids) * 4 >= share.num_computed_tokens  # admission takes the whole prompt's at once


def test_it_comes_back_from_the_file(trace: Trace, written: str, folder: Path) -> None:
    assert read_text(written, folder) == trace


@given(cut=st.floats(0, 1))
def test_a_stopped_writer_leaves_a_trace_up_to_there(trace: Trace, written: str, folder: Path, cut: float) -> None:
    first = written.index("\n") + 1
    text = written[: first + round(cut * (len(written) - first))]
    got = read_text(text, folder)
    assert got.steps == trace.steps[: text.count("\n") - 1]


def test_the_first_line_names_schema_and_version(written: str) -> None:
    header = json.loads(written.splitlines()[0])
    assert (header["schema"], header["version"], header["model"]) == ("labcore.trace", 3, "lab")
    assert header["config"] == json.loads(json.dumps(asdict(TIGHT)))


@pytest.mark.parametrize(
    ("line", "text", "says"),
    [
        (0, "", "line 1: JSONDecodeError"),
        (0, "[]", "line 1: ValueError: not a trace"),
        (0, '{"schema": "labcore.trace", "version": 2, "model": "m", "config": {}}', "line 1: ValueError: version 2"),
        (0, '{"schema": "labcore.trace", "version": true, "model": "m", "config": {}}', "line 1: ValueError: version True"),
        (0, '{"schema": "labcore.trace", "version": 3, "model": "m"}', "line 1: KeyError: 'config'"),
        (3, "", "line 4: JSONDecodeError"),
        (3, "{}", "line 4: KeyError: 'pieces'"),
        (3, "7", "line 4: AttributeError"),
        (3, "[" * 100_000, "line 4: RecursionError"),
        (3, '{"pieces": {}, "arrived": [], "scheduled": [{"request_id": "a"}]}', "line 4: KeyError: 'num_tokens'"),
        (3, '{"pieces": {}, "arrived": [], "scheduled": [], "step": 1}', "line 4: KeyError"),
    ],
)
def test_damage_is_named(written: str, folder: Path, line: int, text: str, says: str) -> None:
    lines = written.split("\n")
    lines[line] = text
    with pytest.raises(InvalidTrace, match=says):
        read_text("\n".join(lines), folder)


@given(data=st.data())
def test_any_damage_is_named_or_harmless(written: str, folder: Path, data: st.DataObject) -> None:
    raw = bytearray(written.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_text(bytes(raw), folder)
    except InvalidTrace as error:
        assert "damaged.jsonl" in str(error)


@pytest.mark.parametrize(
    ("field", "value"),
    [("step", "x"), ("preempted", "abc"), ("preempted", [1]), ("finished", 3), ("running", 1.5), ("idle_reason", None),
     ("scheduled", [{"block_ids": [0.5]}]), ("scheduled", "ab"), ("arrived", [{"prompt": ["1"]}]), ("extra", 1)],
)  # fmt: skip
def test_a_field_of_another_type_is_named(written: str, folder: Path, field: str, value: Any) -> None:
    lines = written.split("\n")
    entry = json.loads(lines[1])
    whole = entry.get(field)
    if isinstance(value, list) and isinstance(value[0], dict):
        value = [{**whole[0], **value[0]}]
    lines[1] = json.dumps({**entry, field: value})
    with pytest.raises(InvalidTrace, match=r"line 2: (TypeError|AttributeError)"):
        read_text("\n".join(lines), folder)


def test_an_observer_that_is_empty_yet_is_one(lab_model: LlamaModel) -> None:
    """A list that is its own observer is false until the first record has come."""

    class Recorder(list):  # type: ignore[type-arg]
        __call__ = list.append

    records = Recorder()
    LLM(lab_model, observer=records).generate("hello", SamplingParams(max_tokens=2))
    assert len(records[0].arrived) == 1 and len(records[0].scheduled) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match=r"none\.jsonl: cannot be read"):
        read_trace(tmp_path / "none.jsonl")


def test_without_an_observer_no_record_is_made(lab_model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off is free: with the records' classes gone, an engine that nobody observes does not notice."""

    def made(**fields: Any) -> None:
        raise AssertionError("a record was made")

    for name in ("StepRecord", "ScheduledRecord", "ArrivalRecord"):
        monkeypatch.setattr(labcore.engine.recorder, name, made)
    llm = LLM(lab_model, config=TIGHT)
    assert len(llm.generate(PROMPTS, SamplingParams(max_tokens=9, temperature=0.0))) == 3
    llm.engine.add_request("a", "hello")
    llm.engine.abort("a")
    assert llm.engine.scheduler.num_steps > 0
    with pytest.raises(AssertionError, match="a record was made"):
        recorded(lab_model)


def test_observed_or_not_the_answer_is_the_same(lab_model: LlamaModel) -> None:
    seeded = SamplingParams(max_tokens=9, temperature=0.9, seed=3)
    watched = LLM(lab_model, config=TIGHT, observer=[].append).generate(PROMPTS, seeded)
    assert watched == LLM(lab_model, config=TIGHT).generate(PROMPTS, seeded)


def test_ids_of_numpy_are_written(lab_model: LlamaModel, folder: Path) -> None:
    records: list[StepRecord] = []
    llm = LLM(lab_model, observer=records.append)
    llm.generate([np.arange(5)], SamplingParams(max_tokens=np.int64(2), stop_token_ids=(np.int64(3),)))
    assert read_text(text_of(llm.engine, records), folder).arrivals[0].prompt == (0, 1, 2, 3, 4)
