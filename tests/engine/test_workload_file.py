"""A recorded run can be made again: same requests, same moments, every decision the same; and files that are wrong say where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidRequest, InvalidTrace
from labcore.core.trace import StepRecord
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.trace_file import Trace, read_trace, trace_writer
from labcore.engine.workload_file import Asked, asked_in, first_difference, perform, read_workload
from labcore.lab.equivalence import run
from labcore.lab.soak import Truth, Watched, happen, random_config
from labcore.model.llama import LlamaModel


def again(model: LlamaModel, trace: Trace) -> str:
    return first_difference(trace.steps, list(perform(model, trace.config, asked_in(trace), len(trace.steps))))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happened_happens_again(lab_model: LlamaModel, tmp_path: Path, seed: int) -> None:
    """Aborts, deadlines, forks, priorities, preemption; through a file and back."""
    rng = np.random.default_rng(5000 + seed)
    watched = Watched(lab_model, random_config(rng), Truth(lab_model))
    happen(watched, rng)
    watched.finish()
    with open(tmp_path / "t.jsonl", "w", encoding="utf-8", newline="\n") as file:
        write = trace_writer(file, lab_model, watched.engine.config)
        for record in watched.records:
            write(record)
    if watched.records:
        assert again(lab_model, read_trace(tmp_path / "t.jsonl")) == ""


def test_one_who_leaves_while_a_step_is_computed_leaves_again(lab_model: LlamaModel) -> None:
    config = EngineConfig(cache=CacheConfig(block_size=4, num_blocks=12))
    params = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True, n=2)
    asked = [Asked(request_id="a", prompt=[5] * 9, params=params, leaves=2), Asked(request_id="b", prompt=[6] * 9, params=params)]
    steps = tuple(perform(lab_model, config, asked))
    assert steps[2].aborted == ("a", "a#1") and "abort" in {share.state for share in steps[2].scheduled}
    trace = Trace(model="lab", config=config, steps=steps)
    assert asked_in(trace)[0].leaves == 2 and again(lab_model, trace) == ""


def test_an_answer_that_is_left_when_the_first_has_ended_is_given_up_again(lab_model: LlamaModel) -> None:
    """Its name in the records is a#1, and the request's is a."""
    config = EngineConfig(cache=CacheConfig(block_size=4, num_blocks=12))
    params = SamplingParams(max_tokens=9, temperature=1.5, seed=1, n=2)
    prompt = [5] * 9
    first, second = (run(lab_model, {"a": (prompt, params)}).token_ids[name][0] for name in ("a", "a#1"))
    assert first != second
    ends = SamplingParams(max_tokens=9, temperature=1.5, seed=1, n=2, stop_token_ids=(first,))
    for what in ({"gives_up": 3}, {"expires": 3}):
        asked = [Asked(request_id="a", prompt=prompt, params=ends, **what), Asked(request_id="b", prompt=prompt, params=params)]
        steps = tuple(perform(lab_model, config, asked))
        assert steps[0].finished == ("a",) and (steps[3].aborted or steps[3].expired) == ("a#1",)
        assert again(lab_model, Trace(model="lab", config=config, steps=steps)) == ""


def test_a_name_that_is_used_again_is_another_request(lab_model: LlamaModel) -> None:
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    asked = [
        Asked(request_id="a", prompt=[5] * 9, params=params, gives_up=1),
        Asked(request_id="a", prompt=[6] * 9, params=params, step=1),
    ]
    steps = tuple(perform(lab_model, EngineConfig(), asked))
    trace = Trace(model="lab", config=EngineConfig(), steps=steps)
    assert [(one.step, one.gives_up) for one in asked_in(trace)] == [(0, 1), (1, None)]
    assert again(lab_model, trace) == ""


def test_another_decision_is_told(lab_model: LlamaModel) -> None:
    asked = [Asked(request_id="a", prompt=[5] * 40, params=SamplingParams(max_tokens=3, temperature=0.0))]
    config = EngineConfig()
    steps = tuple(perform(lab_model, config, asked))
    chunked = replace(config, scheduler=SchedulerConfig(max_chunk_tokens=16))
    told = again(lab_model, Trace(model="lab", config=chunked, steps=steps))
    assert told.startswith("step 0: scheduled was ") and "num_tokens=16" in told
    lost: list[StepRecord] = list(steps[:-1])
    assert first_difference(steps, lost) == f"{len(steps)} steps were recorded, and {len(lost)} made"


def test_a_file_of_requests_is_read(tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text('{"prompt": "hi", "max_tokens": 3}\n\n{"prompt": [1, 2], "id": "b", "step": 4, "n": 2, "salt": "x"}\n')
    one, two = read_workload(file)
    assert (one.request_id, one.prompt, one.params.max_tokens, one.step) == ("request-0", "hi", 3, 0)
    assert (two.request_id, two.prompt, two.params.n, two.step, two.salt) == ("b", [1, 2], 2, 4, "x")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "no request in it"),
        ("{", "line 1: "),
        ("[]", "line 1: expected"),
        ('{"max_tokens": 3}', "line 1: expected"),
        ('{"prompt": 3}', "line 1: expected"),
        ('{"prompt": "a", "tokens": 3}', "line 1: unknown field 'tokens'"),
        ('{"prompt": "a", "step": -1}', "line 1: step is -1"),
        ('{"prompt": "a", "expires": 1.5}', "line 1: expires is 1.5"),
        ('{"prompt": "a", "step": true}', "line 1: step is True"),
        ('{"prompt": "a", "step": 1000000}', "line 1: step is 1000000"),
        ('{"prompt": "a", "step": 5, "gives_up": 2}', "line 1: gives_up is 2"),
        ('{"prompt": "a", "n": 0}', "line 1: n is 0"),
        ('{"prompt": "a", "temperature": NaN}', "line 1: temperature is nan"),
        ('{"prompt": "a", "salt": 3}', "line 1: id and salt are texts"),
        ('{"prompt": "a"}\n{"prompt": "a", "id": 3}', "line 2: id and salt are texts"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text(line)
    with pytest.raises(InvalidTrace, match=says):
        read_workload(file)
    with pytest.raises(InvalidTrace, match="cannot be read"):
        read_workload(tmp_path / "none")


def test_a_request_that_is_refused_stops_it(lab_model: LlamaModel) -> None:
    asked = [Asked(request_id="a", prompt=[5], params=SamplingParams(), priority=1)]
    with pytest.raises(InvalidRequest, match="the policy is fcfs"):
        list(perform(lab_model, EngineConfig(), asked))
