"""Public failures of memory and scheduling in other engines, on the whole engine with the lab model: what is right here.

What the scheduler's books alone can show is in test_scheduler.py; prefix caches in tests/kv.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidConfig, InvalidRequest
from labcore.core.trace import StepRecord
from labcore.engine.llm import LLM
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.model_runner import ModelRunner
from labcore.engine.plan import Sampled, SchedulerOutput
from labcore.engine.sampling_params import SamplingParams
from labcore.lab.equivalence import largest_difference, run, run_alone
from labcore.model.llama import LlamaModel

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
PROMPT = list(range(300, 324))  # 24 tokens: six blocks of 4


def engine_of(
    model: LlamaModel, num_blocks: int = 16, prefix_cache: str = "radix", clock: Callable[[], float] = lambda: 0.0, **limits: int
) -> tuple[LLMEngine, list[StepRecord]]:
    records: list[StepRecord] = []
    cache = CacheConfig(block_size=4, num_blocks=num_blocks, prefix_cache=prefix_cache)
    return LLMEngine(model, EngineConfig(cache=cache, scheduler=SchedulerConfig(**limits)), records.append, clock), records


def answer(engine: LLMEngine, name: str, prompt: list[int], params: SamplingParams = GREEDY) -> list[int]:
    engine.add_request(name, prompt, params)
    tokens: list[int] = []
    while engine.has_unfinished:
        tokens += [token for out in engine.step() if out.request_id == name for token in out.token_ids]
        engine.check()
    return tokens


def test_a_request_that_outgrows_the_pool_ends_and_the_engine_goes_on(lab_model: LlamaModel) -> None:
    """A03: alone in a pool of two blocks, it preempted itself: an assertion killed the engine, a retry hung it."""
    engine, records = engine_of(lab_model, num_blocks=2, prefix_cache="none")
    engine.add_request("a", PROMPT[:7], replace(GREEDY, max_tokens=9))
    outputs = [out for _ in range(4) for out in engine.step()]
    assert (outputs[-1].finish_reason, len(outputs), engine.cache.num_used) == ("kv_exhausted", 1, 0)
    assert len(answer(engine, "b", PROMPT[:3])) == 5 and records[-1].finished == ("b",)


@pytest.mark.parametrize("prompt_tokens", [6, 8])
def test_a_fork_copies_all_of_a_block_before_it_writes(lab_model: LlamaModel, prompt_tokens: int) -> None:
    """A08: a copy that took two views of one buffer for the same left a part of the block stale."""
    engine, _ = engine_of(lab_model, prefix_cache="none")
    params = SamplingParams(max_tokens=4, n=3, temperature=1.5, seed=4, ignore_eos=True)
    engine.add_request("a", PROMPT[:prompt_tokens], params)
    engine.step()
    before = engine.runner.kv.copy()
    plan = engine.scheduler.schedule()
    assert len(plan.copies) == (2 if prompt_tokens % 4 else 0)  # the last to write finds the block to be its own
    engine.runner.copy_blocks(plan.copies)
    for source, copy in plan.copies:
        assert np.array_equal(engine.runner.kv[:, :, copy], before[:, :, source])
        assert before[:, :, source].any(axis=(-1, -2, -3)).all()  # every layer, K and V: there was something to copy
    engine.scheduler.update(plan, engine.runner.execute(plan))
    requests = {"a": (PROMPT[:prompt_tokens], params)}
    together = run(lab_model, requests | {"b": (PROMPT, replace(params, n=2))}, engine.config)
    alone = run_alone(lab_model, requests | {"b": (PROMPT, replace(params, n=2))})
    assert largest_difference(alone, together) == 0.0
    assert len({tuple(ids) for ids in together.token_ids.values()}) == 5  # they are answers of their own


@pytest.mark.parametrize("prefix_cache", ["radix", "hash"])
def test_blocks_of_an_aborted_prefill_are_owned_by_one(lab_model: LlamaModel, prefix_cache: str) -> None:
    """A09: pages of an unfinished prefill stood in the tree and in the free list; later hits read what others wrote there."""
    engine, _ = engine_of(lab_model, num_blocks=9, prefix_cache=prefix_cache, max_chunk_tokens=8)
    engine.add_request("a", PROMPT, GREEDY)
    engine.step()
    engine.step()
    assert engine.abort("a")
    engine.check()
    answer(engine, "b", list(range(500, 524)))  # takes most of the pool
    cold = engine_of(lab_model, prefix_cache="none")[0]
    assert answer(engine, "a", PROMPT) == answer(cold, "a", PROMPT)


def test_a_full_hit_still_computes_a_token(lab_model: LlamaModel) -> None:
    """A05: a prompt of whole blocks, all of them cached: the last is computed again, and the chain behind it stays whole."""
    engine, records = engine_of(lab_model)
    first = answer(engine, "a", PROMPT[:8])
    begun = len(records)
    assert answer(engine, "b", PROMPT[:8]) == first
    assert (records[begun].num_tokens, records[begun].hit_tokens) == (4, 4)
    begun = len(records)
    answer(engine, "c", PROMPT[:12])
    assert records[begun].hit_tokens == 8


def test_salts_do_not_share(lab_model: LlamaModel) -> None:
    """A06."""
    engine, records = engine_of(lab_model)
    for name, salt in [("a", ""), ("b", "x"), ("c", "x"), ("d", "")]:
        engine.add_request(name, PROMPT, GREEDY, salt=salt)
        while engine.has_unfinished:
            engine.step()
    assert [record.hit_tokens for record in records if record.arrived] == [0, 0, 20, 20]


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_abort_ends_it_within_the_step_wherever_it_is(lab_model: LlamaModel, steps: int) -> None:
    """A35: waiting, in its second chunk, in its third decode step; with all its answers; twice; and a finished id."""
    engine, records = engine_of(lab_model, max_chunk_tokens=12, num_blocks=24)
    engine.add_request("mate", PROMPT[:5], GREEDY)
    engine.add_request("a", PROMPT, replace(GREEDY, n=2))
    for _ in range(steps):
        engine.step()
    assert engine.abort("a") and not engine.abort("a") and not engine.abort("nobody")
    engine.check()
    assert engine.cache.num_used == sum(len(s.block_table) for s in engine.scheduler.running) < 4
    outputs = [out for _ in range(7) for out in engine.step()]
    assert {out.request_id for out in outputs} == {"mate"} and not engine.has_unfinished
    assert [name for record in records for name in record.aborted] == (["a"] if steps < 2 else ["a", "a#1"])
    assert answer(engine, "a", PROMPT[:3]) == answer(engine_of(lab_model)[0], "a", PROMPT[:3])


def test_a_deadline_ends_it_with_its_reason(lab_model: LlamaModel) -> None:
    now = [0.0]
    engine, records = engine_of(lab_model, clock=lambda: now[0])
    engine.add_request("late", PROMPT, replace(GREEDY, n=2), timeout=2.0)
    engine.add_request("mate", PROMPT[:5], GREEDY, timeout=1e9)
    engine.add_request("never begins", PROMPT[:6], GREEDY, timeout=0.0)
    outputs = engine.step()
    assert [(out.request_id, out.finish_reason) for out in outputs if out.finished] == [("never begins", "timeout")]
    now[0] = 2.0
    outputs = engine.step()
    assert [(out.name, out.finish_reason) for out in outputs if out.finished] == [("late", "timeout"), ("late#1", "timeout")]
    assert records[-1].expired == ("late", "late#1")
    engine.check()
    engine.add_request("late", PROMPT[:2], GREEDY)  # the id is free, and the old deadline is not its
    now[0] = 1e6
    outputs = [out for _ in range(8) for out in engine.step()]
    assert {(out.request_id, out.finish_reason) for out in outputs if out.finished} == {("late", "length"), ("mate", "length")}


def test_the_urgent_goes_first_and_takes_the_memory_of_others(lab_model: LlamaModel) -> None:
    engine, records = engine_of(lab_model, num_blocks=8, prefix_cache="none", policy="priority")
    engine.add_request("patient", PROMPT, replace(GREEDY, max_tokens=4), priority=2)
    engine.step()
    engine.add_request("urgent", PROMPT[::-1], GREEDY, priority=0)
    engine.add_request("normal", PROMPT[::-1], GREEDY, priority=1)
    while engine.has_unfinished:
        engine.step()
        engine.check()
    assert [name for record in records for name in record.finished] == ["urgent", "normal", "patient"]
    assert records[1].preempted == ("patient",) and [s.request_id for s in records[1].scheduled] == ["urgent"]
    alone = run_alone(lab_model, {"patient": (PROMPT, replace(GREEDY, max_tokens=4))})
    sampled = [t for record in records for s in record.scheduled if s.request_id == "patient" for t in s.sampled]
    assert sampled == alone.token_ids["patient"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"prompt": PROMPT * 9}, "the pool has 16"),
        ({"name": "a"}, "'a' is in use"),
        ({"n": 0}, "n is 0"),
        ({"n": True}, "n is True"),
        ({"n": 33}, "n is 33; at most 32"),
        ({"priority": -1}, "priority is -1"),
        ({"priority": 1}, "priority is 1; the policy is fcfs"),
        ({"timeout": -1.0}, "timeout is -1.0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": "5"}, "timeout is '5'"),
        ({"timeout": True}, "timeout is True"),
        ({"priority": float("nan")}, "priority is nan"),
        ({"priority": "a"}, "priority is 'a'"),
        ({"priority": 1.5}, "priority is 1.5"),
        ({"salt": ["x"]}, "salt is .'x'.; expected a text"),
        ({"salt": "\ud800"}, "salt is .*expected a text"),
        ({"name": 7}, "request id is 7; expected a text"),
        ({"name": "b#1"}, "ends like the name of a further answer"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [1024]}, "1024 is not an id"),
    ],
)
def test_what_cannot_be_is_refused_and_disturbs_nobody(lab_model: LlamaModel, changed: dict[str, object], says: str) -> None:
    engine, _ = engine_of(lab_model)
    engine.add_request("a", PROMPT, GREEDY)
    tokens = [token for out in engine.step() for token in out.token_ids]
    asked = {"name": "b", "prompt": PROMPT, "n": 1, "priority": 0, "timeout": None, "salt": ""} | changed
    with pytest.raises(InvalidRequest, match=says):
        params = SamplingParams(max_tokens=6, n=asked["n"])  # type: ignore[arg-type]
        how = {name: asked[name] for name in ("priority", "timeout", "salt")}
        engine.add_request(asked["name"], asked["prompt"], params, **how)  # type: ignore[arg-type]
    engine.check()
    while engine.has_unfinished:
        tokens += [token for out in engine.step() for token in out.token_ids]
    assert tokens == answer(engine_of(lab_model)[0], "a", PROMPT)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SchedulerConfig(max_chunk_tokens=0), "max_chunk_tokens is 0"),
        (lambda: CacheConfig(num_blocks=0), "num_blocks is 0"),
        (lambda: CacheConfig(block_size=0), "block_size is 0"),
        (lambda: CacheConfig(block_size=12), "block_size is 12; expected a power of two"),
        (lambda: CacheConfig(prefix_cache="tree"), "prefix_cache is 'tree'; expected one of none, radix, hash"),
        (lambda: SchedulerConfig(policy="lifo"), "policy is 'lifo'; expected one of fcfs, priority, lpm"),
    ],
)
def test_limits_that_cannot_work_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        make()


def test_n_answers_are_what_n_seeds_of_their_index_say(lab_model: LlamaModel) -> None:
    """Answers come in order, each as if it had been asked for with the others or without: the index is what tells them apart."""
    params = SamplingParams(max_tokens=5, n=3, temperature=1.2, seed=9, ignore_eos=True)
    three = LLM(lab_model).generate([PROMPT, PROMPT[:3]], params)
    assert [(c.index, c.prompt == PROMPT) for c in three] == [(0, True), (1, True), (2, True), (0, False), (1, False), (2, False)]
    two = LLM(lab_model).generate(PROMPT, replace(params, n=2))
    assert [c.token_ids for c in two] == [c.token_ids for c in three[:2]]
    assert LLM(lab_model).generate(PROMPT, replace(params, n=1))[0].token_ids == three[0].token_ids


class _Fails(ModelRunner):
    """A runner that fails once, before it has done anything."""

    def __init__(self, engine: LLMEngine) -> None:
        self.__dict__.update(vars(engine.runner))
        self.failed, engine.runner = False, self

    def execute(self, output: SchedulerOutput) -> list[Sampled]:
        if output.copies and not self.failed:
            self.failed = True
            raise MemoryError
        return super().execute(output)


def test_a_step_that_fails_is_made_up_for_by_the_next(lab_model: LlamaModel) -> None:
    """Copies that were planned are made, whoever expired is told, and nobody is kept for ever."""
    now, params = [0.0], SamplingParams(max_tokens=4, n=2, temperature=1.5, seed=4, ignore_eos=True)
    engine, _ = engine_of(lab_model, prefix_cache="none", clock=lambda: now[0])
    _Fails(engine)
    engine.add_request("a", PROMPT[:6], params)
    outputs = engine.step()
    engine.add_request("late", PROMPT, GREEDY, timeout=0.0)
    with pytest.raises(MemoryError):
        engine.step()
    engine.check()
    while engine.has_unfinished:
        outputs += engine.step()
        engine.check()
    assert [out.finish_reason for out in outputs if out.request_id == "late"] == ["timeout"]
    said = {i: [t for out in outputs if (out.request_id, out.index) == ("a", i) for t in out.token_ids] for i in (0, 1)}
    alone = run(lab_model, {"a": (PROMPT[:6], params)})
    assert [said[0], said[1]] == [alone.token_ids["a"], alone.token_ids["a#1"]]


def test_nobody_is_preempted_in_vain(lab_model: LlamaModel) -> None:
    """The urgent one would not fit even without the patient one: that goes on meanwhile."""
    engine, records = engine_of(lab_model, num_blocks=10, prefix_cache="none", policy="priority", watermark_blocks=0)
    engine.add_request("first", PROMPT[:20], replace(GREEDY, max_tokens=4), priority=0)
    engine.add_request("patient", PROMPT[:8], replace(GREEDY, max_tokens=4), priority=1)
    engine.step()
    engine.add_request("urgent", PROMPT, replace(GREEDY, max_tokens=4), priority=0)
    while engine.has_unfinished:
        engine.step()
        engine.check()
    assert [name for record in records for name in record.preempted] == []
    assert [record.finished for record in records if record.finished] == [("first", "patient"), ("urgent",)]


def test_what_has_ended_leaves_nothing_behind(lab_model: LlamaModel) -> None:
    """Deadlines of requests that ended, and trees of salts whose blocks are gone."""
    engine, _ = engine_of(lab_model, num_blocks=12)
    for i in range(200):
        engine.add_request(str(i), PROMPT[:9], replace(GREEDY, max_tokens=1), timeout=3600.0, salt=f"salt {i}")
        while engine.has_unfinished:
            engine.step()
    assert len(engine.scheduler._deadlines._heap) < 80
    assert len(engine.cache.prefix_cache.roots) <= 6 and len(engine._requests) == 0  # type: ignore[attr-defined]
    engine.check()
