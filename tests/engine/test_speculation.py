"""Speculative decoding is plain decoding, bit for bit, where its guesses have no chance in them; else it has the same law."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidConfig, NumericalError
from labcore.core.speculative_config import SpeculativeConfig
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.plan import Draft
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.speculative.draft_length import draft_length, expected_tokens, followed
from labcore.engine.speculative.ngram import Lookup
from labcore.engine.verify import agreeing, rejected, residual
from labcore.lab.equivalence import Requests, Run, largest_difference, run, run_alone
from labcore.model.llama import LlamaModel

GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.4, top_k=8, seed=5)
REPEATING = list(range(300, 312)) * 4
NGRAM = SpeculativeConfig(method="ngram", num_draft_tokens=4, adaptive=False, min_ngram=1)
DRAFT = SpeculativeConfig(method="draft", num_draft_tokens=3, adaptive=False, draft_layers=3)


def requests(params: SamplingParams) -> Requests:
    return {
        "a": (REPEATING, params), "b": (REPEATING[:17], replace(params, max_tokens=30)), "c": ("hello hello hello", params),
        "d": (REPEATING[:1], replace(params, max_tokens=9)), "e": (REPEATING[5:40], replace(params, n=2)),
    }  # fmt: skip


def accepted(done: Run) -> int:
    return sum(share.num_accepted for record in done.records for share in record.scheduled)


@pytest.fixture(scope="module")
def plain(lab_model: LlamaModel) -> dict[SamplingParams, Run]:
    return {params: run_alone(lab_model, requests(params)) for params in (GREEDY, SAMPLED)}


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 5, 9])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    "limits",
    [
        {}, {"chunk": 3}, {"chunk": 1}, {"budget": 7}, {"num_blocks": 18}, {"prefix_cache": "radix"},
        {"prefix_cache": "hash", "num_blocks": 18, "chunk": 5},
    ],
    ids=str,
)  # fmt: skip
def test_ngram_speculation_is_plain_decoding(
    lab_model: LlamaModel, plain: dict[SamplingParams, Run], params: SamplingParams, num_draft_tokens: int, adaptive: bool,
    limits: dict[str, Any],
) -> None:  # fmt: skip
    speculative = replace(NGRAM, num_draft_tokens=num_draft_tokens, adaptive=adaptive)
    done = run(lab_model, requests(params), config_of(speculative, **limits))
    assert largest_difference(plain[params], done) == 0.0
    assert done.token_ids == plain[params].token_ids
    if params is GREEDY and not adaptive and limits.get("chunk") != 1:
        assert accepted(done) > 0


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 6])
@pytest.mark.parametrize(
    "limits", [{}, {"chunk": 3}, {"budget": 7}, {"num_blocks": 18}, {"prefix_cache": "radix", "num_blocks": 20}], ids=str
)
def test_greedy_draft_speculation_is_plain_decoding(
    lab_model: LlamaModel, plain: dict[SamplingParams, Run], num_draft_tokens: int, limits: dict[str, Any]
) -> None:
    done = run(lab_model, requests(GREEDY), config_of(replace(DRAFT, num_draft_tokens=num_draft_tokens), **limits))
    assert largest_difference(plain[GREEDY], done) == 0.0
    assert done.token_ids == plain[GREEDY].token_ids
    assert accepted(done) > 0


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    "limits", [{}, {"budget": 7}, {"num_blocks": 20}, {"prefix_cache": "radix"}, {"prefix_cache": "radix", "num_blocks": 20}],
    ids=str,
)  # fmt: skip
def test_seeded_runs_with_drawn_guesses_repeat(lab_model: LlamaModel, adaptive: bool, limits: dict[str, Any]) -> None:
    """Alone, with mates, with unseeded mates, in another order, after preemption: the request's own history decides."""
    speculative = replace(DRAFT, adaptive=adaptive)
    asked = requests(SAMPLED)
    alone = run_alone(lab_model, asked, config_of(speculative))
    together = run(lab_model, asked, config_of(speculative, **limits))
    turned = run(lab_model, dict(reversed(asked.items())), config_of(speculative, **limits))
    unseeded = replace(SAMPLED, seed=None)
    mates = run(lab_model, {"x": ("good", unseeded), **asked, "y": (REPEATING, unseeded)}, config_of(speculative, **limits))
    for other in (together, turned, mates):
        assert {name: other.token_ids[name] for name in alone.token_ids} == alone.token_ids
    assert accepted(together) > 0
    if limits.get("num_blocks"):
        assert together.num_preemptions > 0


@pytest.mark.parametrize("params", [SAMPLED, replace(SAMPLED, temperature=0.0)], ids=["sampled", "greedy"])
def test_a_mate_whose_prompt_is_scored_changes_no_guess(lab_model: LlamaModel, params: SamplingParams) -> None:
    """All rows of its prompt are computed by the model, and stand before those of whoever comes behind it."""
    runs = []
    for scored in (None, 0):
        mate = ("a long prompt in small chunks, for many steps: " * 3, replace(params, max_tokens=1, prompt_logprobs=scored))
        runs.append(run(lab_model, {"mate": mate, "a": ("abc", replace(params, max_tokens=30))}, config_of(DRAFT, chunk=6)))
    assert runs[0].token_ids == runs[1].token_ids and accepted(runs[0]) == accepted(runs[1]) > 0
    assert len(runs[0].records) == len(runs[1].records)


def config_of(
    speculative: SpeculativeConfig, chunk: int | None = None, budget: int = 512, num_blocks: int = 200, prefix_cache: str = "none"
) -> EngineConfig:
    return EngineConfig(
        cache=CacheConfig(block_size=4, num_blocks=num_blocks, prefix_cache=prefix_cache),
        scheduler=SchedulerConfig(max_chunk_tokens=chunk, max_num_batched_tokens=budget), speculative=speculative,
    )  # fmt: skip


@pytest.mark.parametrize("speculative", [NGRAM, DRAFT], ids=["ngram", "draft"])
def test_near_the_end_of_the_context(lab_model: LlamaModel, speculative: SpeculativeConfig) -> None:
    """A13: the draft is cut to what may still come; no position behind the context is ever computed."""
    limit = lab_model.config.max_model_len
    for missing in (1, 2, 3, 4, 6):
        prompt = (REPEATING * 50)[: limit - missing]
        asked: Requests = {"a": (prompt, replace(GREEDY, max_tokens=10))}
        config = EngineConfig(cache=CacheConfig(num_blocks=limit // 16), speculative=speculative)
        done, before = run(lab_model, asked, config), run(lab_model, asked, replace(config, speculative=SpeculativeConfig()))
        assert done.token_ids == before.token_ids and len(done.token_ids["a"]) == missing
        assert done.records[-1].scheduled[0].state == "length"
        assert largest_difference(before, done) == 0.0


@pytest.mark.parametrize("speculative", [NGRAM, DRAFT], ids=["ngram", "draft"])
def test_a_stop_inside_an_accepted_run_ends_there(lab_model: LlamaModel, speculative: SpeculativeConfig) -> None:
    """A12: whichever token of the answer ends it, the answer is that of plain decoding, and nothing is held afterwards."""
    said = "wxyz, 1234; QRST"
    prompt, params = f"say {said} and again: ", replace(GREEDY, choices=(said,), ignore_eos=False)
    whole = run(lab_model, {"a": (prompt, params)}).token_ids["a"]
    inside = 0
    for token in dict.fromkeys(whole):
        asked: Requests = {"a": (prompt, replace(params, stop_token_ids=(token,)))}
        done = run(lab_model, asked, config_of(speculative))
        assert done.token_ids["a"] == whole[: whole.index(token) + 1]
        last = done.records[-1].scheduled[0]
        assert last.state == "stop" and last.num_computed_tokens == last.num_tokens_known - 1
        inside += last.num_accepted >= len(last.sampled)
    assert inside > 0, "no stop fell inside an accepted run: the test looks at nothing"


def test_a_stop_text_inside_an_accepted_run(lab_model: LlamaModel) -> None:
    def text(speculative: SpeculativeConfig, params: SamplingParams) -> tuple[str, list[int], list[Any]]:
        engine = LLMEngine(lab_model, config_of(speculative))
        engine.add_request("a", REPEATING, params)
        outputs = []
        while engine.has_unfinished:
            outputs += engine.step()
        probs = [one.logprob for out in outputs for one in out.logprobs]
        return "".join(out.text for out in outputs), [t for out in outputs for t in out.token_ids], probs

    whole, tokens, _ = text(SpeculativeConfig(), GREEDY)
    assert len(whole) > 12
    for at in range(2, 12, 3):
        params = replace(GREEDY, stop=(whole[at : at + 2],), logprobs=2)
        plain, speculative = text(SpeculativeConfig(), params), text(NGRAM, params)
        assert plain == speculative
        assert plain[0] == whole[: whole.index(whole[at : at + 2])] and len(plain[1]) < len(tokens)
        assert len(plain[2]) == len(plain[1])


RULES: list[dict[str, Any]] = [
    {"presence_penalty": 1.5, "frequency_penalty": 0.5}, {"repetition_penalty": 1.3, "min_tokens": 5},
    {"logit_bias": {301: 3.0, 305: -2.0}}, {"allowed_token_ids": tuple(range(300, 312))}, {"min_p": 0.2, "top_p": 0.9},
    {"regex": "[a-z]{3,40}"}, {"choices": ("hello there", "hello world", "good")},
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_rule_knows_the_guesses_before_it(lab_model: LlamaModel, rule: dict[str, Any], params: SamplingParams) -> None:
    asked: Requests = {"a": (REPEATING, replace(params, ignore_eos=False, **rule)), "b": (REPEATING, params)}
    plain, done = run(lab_model, asked), run(lab_model, asked, config_of(NGRAM))
    assert done.token_ids == plain.token_ids
    assert largest_difference(plain, done) == 0.0
    drafted = run(lab_model, asked, config_of(DRAFT))
    if params is GREEDY:
        assert drafted.token_ids == plain.token_ids
    else:
        assert drafted.token_ids == run(lab_model, asked, config_of(DRAFT, num_blocks=40)).token_ids


# the law


def laws(seed: int, num_laws: int, size: int = 8) -> np.ndarray:
    """Laws with zeros in them, as after top-k."""
    rng = np.random.default_rng(seed)
    rows = rng.random((num_laws, size)) ** 3
    for row in rows:
        row[rng.permutation(size)[: int(rng.integers(0, size - 2))]] = 0.0
    return rows / rows.sum(axis=1, keepdims=True)


def test_a_guess_without_mass_never_stands() -> None:
    """A15: not even at a coin of exactly 0."""
    p, q = np.array([0.0, 0.5, 0.5]), np.array([1.0, 0.0, 0.0])
    assert rejected(Draft((0,), (q,)), [p, p], coin=lambda i: 0.0, number=lambda i: 0.3) == [1]
    assert rejected(Draft((1,), (p,)), [p, p], coin=lambda i: 1 - 2**-53, number=lambda i: 0.9) == [1, 2]


def test_where_nothing_is_left_the_law_itself_is_used() -> None:
    p = np.array([0.25, 0.75])
    assert residual(p, p).tolist() == p.tolist()
    assert residual(p, np.array([0.5, 0.5])).tolist() == [0.0, 0.25]


def test_a_row_without_a_number_counts_only_if_it_is_reached() -> None:
    error = NumericalError("x")
    assert agreeing(Draft((5, 6)), [5, 9, error]) == [5, 9]
    assert agreeing(Draft((5, 6)), [5, error, 7]) == [5]
    assert agreeing(Draft((5, 6)), [error, 6, 7]) is error
    q = np.array([0.5, 0.5])
    assert rejected(Draft((0,), (q,)), [error, q], lambda i: 0.0, lambda i: 0.0) is error
    assert rejected(Draft((0,), (q,)), [q, error], lambda i: 0.0, lambda i: 0.0) == [0]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 3), st.integers(0, 2), st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_a_lookup_finds_what_followed_last(tokens: list[int], shortest: int, more: int, most: int) -> None:
    """Read at once or token by token; against a search from the end."""
    lookup = Lookup(shortest, shortest + more)
    for length in range(1, len(tokens) + 1):
        known = tokens[:length]
        want: list[int] = []
        for size in range(min(shortest + more, length), shortest - 1, -1):
            ends = [end for end in range(size, length) if known[end - size : end] == known[-size:]]
            if ends:
                want = known[ends[-1] : ends[-1] + most]
                break
        assert lookup.guess(known, most) == want == Lookup(shortest, shortest + more).guess(known, most)


def test_the_length_follows_acceptance() -> None:
    assert expected_tokens(1.0, 4) == 5 and expected_tokens(0.0, 4) == 1
    low, high = 0.5, 0.5
    for _ in range(40):
        low, high = followed(low, 3, 0), followed(high, 3, 3)
    assert draft_length(low, 4, 1) == 0 and draft_length(high, 4, 1) == 4
    assert draft_length(0.6, 8, 1) > draft_length(0.6, 8, 32)  # a full batch has no rows to give away
    steps = 0
    while draft_length(low, 4, 1) == 0:  # and it is tried again
        low, steps = followed(low, 0, 0), steps + 1
    assert 1 < steps < 50


def test_a_draft_model_must_go_with_the_model(lab_model: LlamaModel) -> None:
    with pytest.raises(InvalidConfig, match="4 first layers of 4"):
        LLMEngine(lab_model, EngineConfig(speculative=replace(DRAFT, draft_layers=4)))
    with pytest.raises(InvalidConfig, match=r"a draft model is given, and speculative.method is 'none'"):
        LLMEngine(lab_model, draft_model=lab_model)
    with pytest.raises(InvalidConfig, match="method is 'magic'"):
        SpeculativeConfig(method="magic")
    with pytest.raises(InvalidConfig, match="min_ngram is 5; expected at most max_ngram, 4"):
        SpeculativeConfig(min_ngram=5)
