"""The rules of sampling through the whole engine: stops, penalties, masks, log-probabilities, seeds, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import InvalidRequest
from labcore.engine.constraint import constraint_of
from labcore.engine.detokenizer import Detokenizer
from labcore.engine.llm import LLM
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.logprobs import logprobs_of
from labcore.engine.sampling_params import SamplingParams
from labcore.lab.equivalence import Requests, all_logits, largest_difference, run, run_alone
from labcore.loaders.lab import LabTokenizer
from labcore.model.llama import LlamaModel

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=12, temperature=0.8, seed=42, ignore_eos=True)
ENDING = 257  # an id that a request may be told to stop at


@pytest.fixture(scope="module")
def llm(lab_model: LlamaModel) -> LLM:
    return LLM(lab_model)


def tight(num_blocks: int, **limits: Any) -> EngineConfig:
    return EngineConfig(cache=CacheConfig(block_size=4, num_blocks=num_blocks), scheduler=SchedulerConfig(**limits))


# penalties


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_penalties_survive_a_preemption(lab_model: LlamaModel, temperature: float) -> None:
    """A10: what is prompt and what is answer belongs to the request, not to what is being computed again."""
    params = replace(SAMPLED, temperature=temperature, presence_penalty=2.0, frequency_penalty=1.0, repetition_penalty=1.2)
    asked: Requests = {name: ([7, 8, 9, 7], params) for name in "abc"}
    alone, together = run_alone(lab_model, asked), run(lab_model, asked, tight(num_blocks=9))
    assert together.num_preemptions > 0
    assert together.token_ids == alone.token_ids and largest_difference(alone, together) == 0.0
    assert len(set(alone.token_ids["a"])) == 12, "a presence penalty of 2 lets no token of these come twice"


def test_a_penalty_of_the_answer_ignores_the_prompt(lab_model: LlamaModel, llm: LLM) -> None:
    prompt = [7, 8, 9, 7]
    row = all_logits(lab_model, prompt)[-1]
    best = int(np.argmax(row))
    [one] = llm.generate([[*prompt, best]], replace(GREEDY, max_tokens=1, presence_penalty=2.0, frequency_penalty=2.0))
    [plain] = llm.generate([[*prompt, best]], replace(GREEDY, max_tokens=1))
    assert one.token_ids == plain.token_ids


# seeds


def test_a_seeded_request_repeats_whatever_is_around_it(lab_model: LlamaModel) -> None:
    """A22: alone; with seeded and unseeded mates; with a mate that joins later; in another order; after preemption."""
    asked = ("hello there", SAMPLED)
    truth = run(lab_model, {"s": asked}).token_ids["s"]
    ruled = replace(SAMPLED, top_k=5, min_p=0.1, logit_bias={9: 1.0})
    for mate in (replace(SAMPLED, seed=7), replace(SAMPLED, seed=None), GREEDY, ruled):
        for order in ({"s": asked, "m": ("x", mate)}, {"m": ("x", mate), "s": asked}):
            for config in (None, tight(num_blocks=6), tight(num_blocks=40, max_chunk_tokens=1)):
                assert run(lab_model, order, config).token_ids["s"] == truth
    engine = LLMEngine(lab_model)
    engine.add_request("s", *asked)
    got: list[int] = []
    for step in range(40):
        if step == 3:
            engine.add_request("late", "zzz", replace(SAMPLED, seed=None))
        got += [token for out in engine.step() if out.request_id == "s" for token in out.token_ids]
    assert got == truth


# stops


def test_no_part_of_a_stop_text_is_sent() -> None:
    """A20: what may begin a stop is held back; a near miss comes in full; of two stops the first complete one counts."""
    tokenizer = LabTokenizer()

    def stream(text: str, *stop: str, include: bool = False) -> tuple[list[str], bool]:
        reader, parts = Detokenizer(tokenizer, stop, include), []
        for token in text.encode():
            stopped = reader.feed(token)
            parts.append(reader.take())
            if stopped:
                return parts, True
        return [*parts, reader.finish()], False

    assert stream("abcDEFGHIJ", "DEFGHIJ") == (["a", "b", "c", *[""] * 7], True)
    assert "".join(stream("abcDEFGHX", "DEFGHIJ")[0]) == "abcDEFGHX"
    assert stream("abcDEFGHX", "DEFGHIJ")[0][-2] == "DEFGHX"
    assert "".join(stream("one two three", "two three", "e t")[0]) == "on"
    assert "".join(stream("aab", "ab")[0]) == "a"  # the stop begins inside of what seemed to begin it
    assert "".join(stream("abEND", "END", include=True)[0]) == "abEND"


@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_text_ends_all_at_the_same_place(lab_model: LlamaModel, llm: LLM, include_stop: bool) -> None:
    """Text, ids, log-probabilities and usage; streamed and not."""
    [free] = llm.generate("tell", replace(GREEDY, max_tokens=30, logprobs=1))
    at = next(i for i in range(4, 20) if free.text.isascii() or "\ufffd" not in free.text[i : i + 3])
    stop = free.text[at : at + 3]
    params = replace(GREEDY, max_tokens=30, logprobs=1, stop=(stop,), include_stop=include_stop)
    [cut] = llm.generate("tell", params)
    end = free.text.index(stop) + (len(stop) if include_stop else 0)
    assert (cut.text, cut.finish_reason) == (free.text[:end], "stop")
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert stop in llm.model.tokenizer.decode(cut.token_ids) and stop not in llm.model.tokenizer.decode(cut.token_ids[:-1])
    assert cut.logprobs == free.logprobs[: len(cut.token_ids)]
    outputs = list(llm.stream("tell", params))
    assert "".join(out.text for out in outputs) == cut.text
    assert all(stop not in out.text or include_stop for out in outputs)
    assert [t for out in outputs for t in out.token_ids] == cut.token_ids


def test_both_ways_give_the_same_half_character(lab_model: LlamaModel) -> None:
    """A19: two of three bytes of a character, then a stop token: streamed and not, a replacement sign and no less."""
    llm, euro = LLM(lab_model), "€".encode()
    bias = dict.fromkeys(euro[:2], 100.0)
    params = replace(GREEDY, max_tokens=2, logit_bias=bias, frequency_penalty=2.0)
    [whole] = llm.generate("x", params)
    joined = "".join(out.text for out in llm.stream("x", params))
    assert whole.text == joined == bytes(whole.token_ids).decode("utf-8", "replace") and "\ufffd" in whole.text


def test_no_stop_counts_before_min_tokens(llm: LLM) -> None:
    [free] = llm.generate("tell", replace(GREEDY, max_tokens=10))
    first = free.token_ids[0]
    [early] = llm.generate("tell", replace(GREEDY, max_tokens=10, stop_token_ids=(first,)))
    [late] = llm.generate("tell", replace(GREEDY, max_tokens=10, stop_token_ids=(first,), min_tokens=4))
    assert early.token_ids == [first]
    assert len(late.token_ids) >= 4 and first not in late.token_ids[:3]
    text = free.text[:1]
    [late] = llm.generate("tell", replace(GREEDY, max_tokens=10, stop=(text,), min_tokens=4))
    assert len(late.token_ids) >= 4


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_max_tokens_with_several_answers(llm: LLM, max_tokens: int) -> None:
    """A17."""
    answers = llm.generate("x", replace(SAMPLED, max_tokens=max_tokens, n=3))
    assert [len(one.token_ids) for one in answers] == [max_tokens] * 3
    assert {one.finish_reason for one in answers} == {"length"}


# masks


def test_an_answer_is_one_of_the_choices(llm: LLM) -> None:
    choices = ("yes", "no", "yes, but later", "perhaps (or not)")
    seen = set()
    for seed in range(40):
        params = SamplingParams(max_tokens=30, temperature=2.0, seed=seed, choices=choices)
        [one] = llm.generate("well?", params)
        assert one.text in choices and one.finish_reason == "stop"
        seen.add(one.text)
    assert len(seen) > 1


@pytest.mark.parametrize("regex", [r"[0-9]{3}-[0-9]{4}", r"(ab|cd)+x", r"é{2,3}\.", r"\{\"a\": (true|false)\}"])
def test_an_answer_matches_the_pattern(llm: LLM, regex: str) -> None:
    for seed in range(6):
        [one] = llm.generate("well?", SamplingParams(max_tokens=60, temperature=1.5, seed=seed, regex=regex))
        assert one.finish_reason == "length" or re.fullmatch(regex, one.text)
    [one] = llm.generate("well?", SamplingParams(max_tokens=60, temperature=0.0, regex=regex, logit_bias={256: 5.0}))
    assert one.finish_reason == "length" or re.fullmatch(regex, one.text)


def test_only_what_is_allowed_comes(llm: LLM) -> None:
    [one] = llm.generate("x", replace(SAMPLED, allowed_token_ids=(5, 6), max_tokens=30))
    assert set(one.token_ids) == {5, 6}
    [none] = llm.generate("x", SamplingParams(allowed_token_ids=(5,), stop_token_ids=(5,), min_tokens=2, temperature=0.0))
    assert none.finish_reason == "error" and "no token may be chosen at position" in none.error


def test_the_last_id_may_be_biased(llm: LLM) -> None:
    """A30: the bound is the width of the output; a negative id is no id."""
    width = llm.model.config.vocab_size
    [one] = llm.generate("x", replace(GREEDY, max_tokens=2, logit_bias={width - 1: 1000.0, 3: -1000.0}))
    assert one.token_ids == [width - 1] * 2
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        value: Any = {width: 1.0} if name == "logit_bias" else (width,)
        with pytest.raises(InvalidRequest, match=f"{name} has token {width}, outside the vocabulary of {width}"):
            llm.generate("x", SamplingParams(**{name: value}))


# log-probabilities


def test_logprobs_are_the_models_own(lab_model: LlamaModel, llm: LLM) -> None:
    params = replace(SAMPLED, logprobs=3, prompt_logprobs=2, temperature=2.0, top_k=50)
    [one] = llm.generate("hello", params)
    prompt = lab_model.tokenizer.encode("hello")
    rows = all_logits(lab_model, [*prompt, *one.token_ids])
    tokens = [*prompt, *one.token_ids]
    want = [logprobs_of(row, token, 3) for row, token in zip(rows[len(prompt) - 1 :], one.token_ids, strict=False)]
    assert list(one.logprobs) == want
    assert list(one.prompt_logprobs) == [logprobs_of(rows[i], tokens[i + 1], 2) for i in range(len(prompt) - 1)]


@pytest.mark.parametrize("config", [tight(40, max_chunk_tokens=3), tight(12), tight(40)], ids=["chunks", "preempted", "ample"])
def test_logprobs_do_not_depend_on_the_schedule(lab_model: LlamaModel, config: EngineConfig) -> None:
    params = replace(SAMPLED, logprobs=2, prompt_logprobs=1, n=2)
    prompts = [[7, 8, 9, 10, 11, 12, 13], [5, 6, 7, 5, 6, 7]]
    truth = [LLM(lab_model).generate([prompt], params) for prompt in prompts]
    together = LLM(lab_model, config=config).generate(prompts, params)
    assert together == [one for answers in truth for one in answers]
    assert all(len(one.prompt_logprobs) == len(one.prompt) - 1 for one in together)


def test_a_cached_prefix_is_computed_where_its_logprobs_are_wanted(lab_model: LlamaModel) -> None:
    llm = LLM(lab_model, config=EngineConfig(cache=CacheConfig(block_size=4, prefix_cache="radix")))
    prompt = list(range(20, 40))
    first, again = (llm.generate([prompt], replace(GREEDY, prompt_logprobs=0))[0] for _ in range(2))
    assert first == again and len(first.prompt_logprobs) == 19


# what is refused


BAD: dict[str, list[object]] = {
    "temperature": [nan, inf, -inf, -0.1, "1", True, 10**400], "top_p": [nan, 0.0, 1.1, -1, "x", True, inf],
    "min_p": [nan, -0.1, 1.5, None, True], "top_k": [-1, 1.5, nan, "2", True], "min_tokens": [-1, 1.5, True, 99],
    "repetition_penalty": [nan, 0.0, -1.0, inf, "1", True], "presence_penalty": [nan, 2.1, -2.1, inf, True],
    "frequency_penalty": [nan, 2.1, -2.1, inf, True], "seed": [-1, 2**64, 1.5, nan, True, "7"],
    "logprobs": [-1, 101, 1.5, True], "prompt_logprobs": [-1, 101, nan, True], "n": [0, -1, 1.5, True, 10**9],
    "max_tokens": [0, -1, 1.5, True, nan], "stop": [("",), ("a", ""), 5, (5,), None], "include_stop": [1, None, "yes"],
    "ignore_eos": [1, None], "stop_token_ids": [(-1,), (1.5,), (True,), 5, "ab"],
    "allowed_token_ids": [(), (-1,), "a", 5, (None,)],
    "logit_bias": [{-1: 1.0}, {1: nan}, {1: inf}, {1: "x"}, {"1": 1.0}, {True: 1.0}, [1], {1: 1e5}, {1: True}],
    "choices": [("",), (1,), 5], "regex": [5, None, "(", "[", "a{2", "(?=a)b", "a)(b", "a|b)|(c"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values], ids=str)
def test_a_bad_value_is_refused_by_the_name_of_its_field(llm: LLM, name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name):
        llm.generate("x", SamplingParams(**{name: value}))  # type: ignore[arg-type]
    assert not llm.engine.has_unfinished


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"choices": ("a",), "regex": "b"}, "choices and regex are both given"),
        ({"regex": "b", "allowed_token_ids": (5,)}, "regex and allowed_token_ids are both given"),
        ({"choices": ("abc",), "min_tokens": 2}, "min_tokens is 2; expected 0 with choices"),
        ({"min_tokens": 17}, "min_tokens is 17; expected at most max_tokens, 16"),
    ],
)  # fmt: skip
def test_conflicts_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        SamplingParams(**fields)


def test_numbers_of_other_kinds_become_pythons_own() -> None:
    """numpy's have ends, and fractions no arrays: what one request brought must not stop a step of all."""
    odd = SamplingParams(
        seed=np.uint64(2**63), logprobs=np.int8(3), stop_token_ids=(np.int32(7),), allowed_token_ids=(np.int64(5),),
        logit_bias={np.int64(5): Fraction(1, 2)},  # type: ignore[dict-item]
    )  # fmt: skip
    same = SamplingParams(seed=2**63, logprobs=3, stop_token_ids=(7,), allowed_token_ids=(5,), logit_bias={5: 0.5})
    assert odd == same
    values = [odd.seed, odd.logprobs, *odd.stop_token_ids, *(odd.allowed_token_ids or ()), *odd.logit_bias]
    assert [type(value) for value in values] == [int] * 5 and type(odd.logit_bias[5]) is float


def test_a_field_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="top_q"):
        SamplingParams(top_q=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"choices": ("a", "ab")}, ["a", "ab"]),
        ({"choices": ("ab", "a", "abc", "b")}, ["a", "ab", "abc", "b"]),
        ({"choices": ("there", "the")}, ["the", "there"]),
        ({"choices": ("yes", "yes, but later", "no")}, ["no", "yes", "yes, but later"]),
        ({"choices": ("a.c", "a|b", "(", "é\n", "\x02", "\x02\x02")}, ["a.c", "a|b", "(", "é\n", "\x02", "\x02\x02"]),
        ({"regex": "a|ab|abc"}, ["a", "ab", "abc"]),
        ({"regex": "[01]{1,2}([.][01])?"}, [f"{a}{b}" for a in ("0", "1", "00", "01", "10", "11") for b in ("", ".0", ".1")]),
        ({"regex": "(x|xy)?z?"}, ["", "x", "xy", "z", "xz", "xyz"]),
    ],
    ids=str,
)  # fmt: skip
def test_all_that_matches_can_come_and_no_more(llm: LLM, fields: dict[str, Any], answers: list[str]) -> None:
    """All texts that the masks let through, walked token by token, are all texts that match; a token may come exactly if one
    of these goes on so."""
    tokenizer = llm.model.tokenizer
    constraint = constraint_of(SamplingParams(**fields), tokenizer)
    wanted = {answer.encode() for answer in answers}
    pieces = {token: tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size) if not tokenizer.is_special(token)}
    ends, met, open_ = tokenizer.eos_token_ids, set(), [(b"", constraint.start)]
    while open_:
        said, state = open_.pop()
        allowed = set(constraint.allowed(state).tolist())
        going_on = {t for t, piece in pieces.items() if piece and any(answer.startswith(said + piece) for answer in wanted)}
        assert allowed - ends == going_on, f"behind {said!r}"
        assert bool(allowed & ends) == (said in wanted), f"behind {said!r}"
        met |= {said} & wanted
        open_ += [(said + pieces[token], constraint.next(state, token)) for token in going_on]
    assert met == wanted
