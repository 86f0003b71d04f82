"""Requests from the outside: prompts, streams, limits, ids, and what is left behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidConfig, InvalidRequest, LabError
from labcore.core.trace import StepRecord
from labcore.engine.llm import LLM
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.api import ForwardBatch
from labcore.model.llama import LlamaModel

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
TINY = EngineConfig(cache=CacheConfig(block_size=4, num_blocks=8))


@pytest.fixture
def llm(lab_model: LlamaModel) -> LLM:
    return LLM(lab_model)


def idle(llm: LLM) -> bool:
    llm.engine.check()
    return not llm.engine.has_unfinished and llm.engine.cache.num_used == 0


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["hello", [7, 8, 9], "a longer prompt than the others", "x"]
    together = llm.generate(prompts, GREEDY)
    assert [c.prompt for c in together] == prompts
    assert [c.token_ids for c in together] == [llm.generate(p, GREEDY)[0].token_ids for p in prompts]
    assert idle(llm)


def test_a_list_of_ids_is_one_prompt(llm: LLM) -> None:
    assert len(llm.generate([7, 8, 9], GREEDY)) == 1
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_max_tokens_is_exact(llm: LLM, max_tokens: int) -> None:
    """A17: k means k, streamed or not."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    [whole] = llm.generate("count", params)
    streamed = [token for out in llm.stream("count", params) for token in out.token_ids]
    assert len(whole.token_ids) == max_tokens
    assert streamed == whole.token_ids
    assert whole.finish_reason == "length"


def test_a_stream_joined_is_the_answer(llm: LLM) -> None:
    """A19: the lab model babbles bytes, so characters are cut everywhere; both paths give the same text."""
    params = SamplingParams(max_tokens=120, temperature=1.3, seed=4, ignore_eos=True)
    [whole] = llm.generate("Zürich 東京", params)
    outputs = list(llm.stream("Zürich 東京", params))
    assert "".join(out.text for out in outputs) == whole.text == llm.model.tokenizer.decode(whole.token_ids)
    assert "\ufffd" in whole.text
    assert [out.finished for out in outputs] == [False] * 119 + [True]


def test_stop_tokens_end_a_request_and_are_counted(llm: LLM) -> None:
    [free] = llm.generate("stop", GREEDY)
    stop = free.token_ids[3]
    first = free.token_ids.index(stop)
    [cut] = llm.generate("stop", SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, stop_token_ids=(stop,)))
    assert cut.token_ids == free.token_ids[: first + 1]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused_and_the_next_one_runs(lab_model: LlamaModel, prompt: str | list[int]) -> None:
    """A16: an empty prompt once tripped an assertion in the loop and took the whole server with it."""
    engine = LLMEngine(lab_model)
    with pytest.raises(InvalidRequest, match="'a': the prompt is empty"):
        engine.add_request("a", prompt, GREEDY)
    assert not engine.has_unfinished
    engine.add_request("a", "x", GREEDY)
    while engine.has_unfinished:
        engine.step()
        engine.check()


@pytest.mark.parametrize("prompt", [[-1], [1024], [1.0], [True], [None], ["a"], [np.int64(1024)]])
def test_ids_outside_the_vocabulary_are_refused(lab_model: LlamaModel, prompt: list[object]) -> None:
    with pytest.raises(InvalidRequest, match=r"prompt token .* is not an id in \[0, 1024\)"):
        LLMEngine(lab_model).add_request("a", prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prompts", [None, b"abc", {1, 2}, {"a": 1}, 7, [None], [b"abc"], [[[1]]], (t for t in [1]), [1.5], ["a", 1]]
)
def test_what_is_no_prompt_is_refused_by_name(llm: LLM, prompts: object) -> None:
    with pytest.raises(InvalidRequest, match=r"a prompt is a text or a list of token ids; got|is not an id in"):
        llm.generate(prompts, GREEDY)  # type: ignore[arg-type]
    assert idle(llm)


@pytest.mark.parametrize("prompt", [np.array([7, 8, 9]), [np.int64(7), np.int64(8), np.int64(9)], (7, 8, 9)])
def test_ids_may_come_from_numpy(llm: LLM, prompt: object) -> None:
    truth = llm.generate([7, 8, 9], GREEDY)[0].token_ids
    assert llm.generate(prompt, GREEDY)[0].token_ids == truth  # type: ignore[arg-type]
    assert llm.generate([prompt], GREEDY)[0].token_ids == truth  # type: ignore[list-item]


def test_parameters_are_what_was_checked(llm: LLM) -> None:
    stops = [5]
    params = SamplingParams(stop_token_ids=stops, max_tokens=np.int64(3))  # type: ignore[arg-type]
    stops.append(6)
    assert params.stop_token_ids == (5,)
    assert SamplingParams(stop_token_ids=(t for t in [5])).stop_token_ids == (5,)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="stop_token_ids has token 1024, outside the vocabulary of 1024"):
        llm.generate("x", SamplingParams(stop_token_ids=(1024,)))
    with pytest.raises(InvalidRequest, match=r"params is {}; expected SamplingParams"):
        llm.generate("x", {})  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="loaded already"):
        LLM(llm.model, backend="numpy")


class Poisoned:
    """A model whose logits for one token id are NaN whenever that token was the last one."""

    def __init__(self, inner: LlamaModel, token: int) -> None:
        self.inner, self.token = inner, token

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def forward(self, batch: ForwardBatch, kv: object) -> np.ndarray:
        logits = self.inner.forward(batch, kv).copy()
        logits[batch.token_ids[batch.logits_indices] == self.token] = np.nan
        return logits


def test_a_row_of_nan_ends_its_request_and_no_other(lab_model: LlamaModel) -> None:
    """A36: the good one says what it says alone; the bad one ends by name; the engine goes on."""
    llm = LLM(lab_model)
    truth = llm.generate([5, 6], GREEDY)[0]
    llm.engine.runner.model = Poisoned(lab_model, 99)  # type: ignore[assignment]
    bad, good = llm.generate([[5, 99], [5, 6]], GREEDY)
    assert (bad.finish_reason, bad.token_ids) == ("error", [])
    assert "position 2 is nan" in bad.error
    assert good.token_ids == truth.token_ids
    assert idle(llm)
    assert llm.generate([5, 6], GREEDY)[0].token_ids == truth.token_ids


def test_a_row_of_nan_inside_a_prompt_that_is_scored_ends_its_request_and_no_other(lab_model: LlamaModel) -> None:
    """A36, kin: the row behind the prompt is a good one; a log-probability of NaN is told to nobody."""
    llm = LLM(lab_model)
    scored = replace(GREEDY, prompt_logprobs=2)
    truth = llm.generate([5, 6], scored)[0]
    llm.engine.runner.model = Poisoned(lab_model, 99)  # type: ignore[assignment]
    unscored, bad, good = llm.generate([[5, 99, 6], [5, 99, 6], [5, 6]], [GREEDY, scored, scored])
    assert unscored.finish_reason == "length"
    assert (bad.finish_reason, bad.token_ids) == ("error", []) and "the largest logit is nan" in bad.error
    assert (good.token_ids, good.prompt_logprobs) == (truth.token_ids, truth.prompt_logprobs)
    assert idle(llm)


def test_an_observer_that_raises_leaves_the_engine_usable(lab_model: LlamaModel) -> None:
    def observer(record: StepRecord) -> None:
        if record.finished:
            raise RuntimeError("observer")

    llm = LLM(lab_model, observer=observer)
    with pytest.raises(RuntimeError, match="observer"):
        llm.generate("x", GREEDY)
    assert idle(llm)
    engine = LLMEngine(lab_model, observer=observer)
    for _ in range(2):  # the id of a request that ended so is free again
        engine.add_request("a", "x", SamplingParams(max_tokens=1, temperature=0.0))
        with pytest.raises(RuntimeError, match="observer"):
            engine.step()
        engine.check()


def test_an_abort_from_an_observer_costs_no_mate_its_tokens(lab_model: LlamaModel) -> None:
    truth = LLM(lab_model).generate("mate", GREEDY)[0].token_ids
    engine = LLMEngine(lab_model, observer=lambda record: engine.abort("a") if record.step == 1 else None)
    engine.add_request("a", "gone", GREEDY)
    engine.add_request("b", "mate", GREEDY)
    seen: dict[str, list[int]] = {"a": [], "b": []}
    while engine.has_unfinished:
        for out in engine.step():
            seen[out.request_id] += out.token_ids
        engine.check()
    assert seen["b"] == truth
    assert len(seen["a"]) == 1


def test_two_steps_at_once_are_refused(lab_model: LlamaModel) -> None:
    engine = LLMEngine(lab_model, observer=lambda record: engine.step())
    engine.add_request("a", "x", GREEDY)
    with pytest.raises(LabError, match="two threads step one engine"):
        engine.step()


def test_others_may_use_the_engine_of_an_llm(llm: LLM) -> None:
    llm.engine.add_request("mine", "x", GREEDY)
    assert len(llm.generate("y", GREEDY)[0].token_ids) == 6
    assert idle(llm)


@pytest.mark.parametrize("prompt", ["\ud800", "ok \udfff", "\udc80\udc81"])
def test_lone_surrogates_are_refused_by_position(llm: LLM, prompt: str) -> None:
    with pytest.raises(InvalidRequest, match=r"lone surrogate U\+D"):
        llm.generate(prompt, GREEDY)
    assert idle(llm)


@pytest.mark.parametrize("prompt", ["\x00", "\x1b[31m", "e\u0301", "🏳️‍🌈", "مرحبا", "\u202eabc", "\ufeff", "a" * 900])
def test_odd_text_is_only_text(llm: LLM, prompt: str) -> None:
    [answer] = llm.generate(prompt, GREEDY)
    assert len(answer.token_ids) == 6
    assert idle(llm)


def test_the_context_is_a_limit(llm: LLM) -> None:
    limit = llm.model.config.max_model_len
    with pytest.raises(InvalidRequest, match=f"prompt of {limit} tokens and one more exceed the model's context of {limit}"):
        llm.generate([1] * limit, GREEDY)
    [answer] = llm.generate([1] * (limit - 2), GREEDY)
    assert (len(answer.token_ids), answer.finish_reason) == (2, "length")


def test_the_pool_is_a_limit_with_a_name(lab_model: LlamaModel) -> None:
    """A01, A03: never fits -> refused; fits but cannot grow on -> ends, and says that the pool was the reason."""
    llm = LLM(lab_model, config=TINY)
    with pytest.raises(InvalidRequest, match="need 9 KV blocks of 4; the pool has 8"):
        llm.generate([[1] * 32, [2, 3]], GREEDY)
    assert idle(llm)  # the refused one took the other, already queued, with it
    [answer] = llm.generate([1] * 29, GREEDY)
    assert (len(answer.token_ids), answer.finish_reason) == (3, "kv_exhausted")
    assert len(llm.generate([2, 3], GREEDY)[0].token_ids) == 6


def test_one_bad_prompt_runs_none(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        llm.generate(["fine", ""], GREEDY)
    with pytest.raises(InvalidRequest, match="2 prompts came with 1 sampling parameters"):
        llm.generate(["a", "b"], [GREEDY])
    assert idle(llm)


def test_a_live_id_is_refused_and_a_dead_one_is_free(lab_model: LlamaModel) -> None:
    """A18."""
    engine = LLMEngine(lab_model)
    engine.add_request("x", "one", GREEDY)
    with pytest.raises(InvalidRequest, match="'x' is in use"):
        engine.add_request("x", "two", GREEDY)
    assert engine.abort("x")
    assert not engine.abort("x")
    engine.add_request("x", "three", GREEDY)
    engine.check()


def test_a_reader_who_leaves_frees_the_request(llm: LLM) -> None:
    stream = llm.stream("hello", SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True))
    next(stream)
    assert not idle(llm)
    stream.close()
    assert idle(llm)
    llm.stream("never read", GREEDY)
    assert idle(llm)


def test_streams_may_be_read_in_turns(llm: LLM) -> None:
    """Two streams and a call to generate in between share the batch, and none loses a token."""
    truth = [llm.generate(p, GREEDY)[0].token_ids for p in ("one", "two", "three")]
    one, two = llm.stream("one", GREEDY), llm.stream("two", GREEDY)
    first, second = next(one).token_ids, next(two).token_ids
    assert llm.generate("three", GREEDY)[0].token_ids == truth[2]
    assert first + [t for out in one for t in out.token_ids] == truth[0]
    assert second + [t for out in two for t in out.token_ids] == truth[1]
    assert idle(llm)


def test_an_unseeded_request_is_still_reproducible(lab_model: LlamaModel) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.0, ignore_eos=True)

    def texts(seed: int) -> list[list[int]]:
        llm = LLM(lab_model, config=EngineConfig(seed=seed))
        return [c.token_ids for c in llm.generate(["same", "same"], params)]

    assert texts(0) == texts(0)
    assert texts(0) != texts(1)
    assert texts(0)[0] != texts(0)[1]


def test_an_empty_engine_steps_without_harm(lab_model: LlamaModel) -> None:
    engine = LLMEngine(lab_model, EngineConfig(scheduler=SchedulerConfig(max_num_seqs=1)))
    assert engine.step() == []
    assert engine.scheduler.num_empty_steps == 1
