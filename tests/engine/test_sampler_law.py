"""The law after all rules is that of `transformers`' processors; penalties, bias and log-probabilities besides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)  # fmt: skip

from labcore.engine.logprobs import logprobs_of
from labcore.engine.philox import philox
from labcore.engine.sampler import Context, adjusted, probabilities, sample
from labcore.engine.sampling_params import SamplingParams

ALL_ONES = (1 << 64) - 1


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
        ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0)),
        (
            (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
            (0x452821E638D01377, 0xBE5466CF34E90C6C),
            (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
        ),
    ],
)
def test_philox_gives_its_published_vectors(counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]) -> None:
    """The known answers of Random123, philox4x64 with 10 rounds."""
    assert philox(counter, key) == words  # type: ignore[arg-type]


def test_philox_is_that_of_numpy() -> None:
    """numpy counts before it draws."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        words = rng.integers(0, 1 << 64, 6, dtype=np.uint64)
        there = np.random.Philox(key=words[4:], counter=words[:4])
        a, b, c, d, k0, k1 = map(int, words)
        carried = (a + 1 & ALL_ONES, b + (a == ALL_ONES) & ALL_ONES, c, d)
        assert philox(carried, (k0, k1)) == tuple(int(x) for x in there.random_raw(4))


def random_params(rng: np.random.Generator) -> SamplingParams:
    return SamplingParams(
        temperature=float(rng.choice([0.3, 0.7, 1.0, 1.5, 3.0])), top_k=int(rng.choice([0, 1, 2, 5, 40])),
        top_p=float(rng.choice([1.0, 0.99, 0.9, 0.5, 0.1, 1e-6])), min_p=float(rng.choice([0.0, 0.02, 0.1, 0.5, 1.0])),
        repetition_penalty=float(rng.choice([1.0, 1.2, 0.7, 3.0])),
    )  # fmt: skip


def theirs(logits: np.ndarray, params: SamplingParams, tokens: list[int]) -> np.ndarray:
    rules = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        rules.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    rules.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        rules.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        rules.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        rules.append(MinPLogitsWarper(params.min_p))
    scores = rules(torch.tensor([tokens]), torch.from_numpy(logits.astype(np.float64))[None])
    return torch.softmax(scores, -1)[0].numpy()


def test_the_law_is_that_of_transformers() -> None:
    """10,000 sets of parameters. A token whose mass lies on the border itself may fall to either side of it by rounding: such
    rows are told apart by moving the border by one part in a billion, and counted."""
    rng, borders = np.random.default_rng(1), 0
    for _ in range(10_000):
        logits = rng.standard_normal(48).astype(np.float32) * 3
        params = random_params(rng)
        tokens = [int(t) for t in rng.integers(0, 48, 9)]
        ours, other = probabilities(logits, params, Context(prompt=tokens[:4], output=tokens[4:])), theirs(logits, params, tokens)
        if not np.allclose(ours, other, atol=1e-12):
            near = [np.count_nonzero(probabilities(logits, _moved(params, by), Context(tokens))) for by in (1 - 1e-9, 1 + 1e-9)]
            assert near[0] != near[1], params
            borders += 1
    assert borders < 10


def _moved(params: SamplingParams, by: float) -> SamplingParams:
    return SamplingParams(
        temperature=params.temperature, top_k=params.top_k, top_p=min(params.top_p * by, 1.0), min_p=min(params.min_p * by, 1.0),
        repetition_penalty=params.repetition_penalty,
    )  # fmt: skip


def test_penalties_know_prompt_and_answer_apart() -> None:
    logits = np.array([2.0, -2.0, 1.0, 0.5], np.float32)
    context = Context(prompt=[0, 1], output=[2, 2, 1])
    assert np.allclose(adjusted(logits, SamplingParams(repetition_penalty=2.0), context), [1.0, -4.0, 0.5, 0.5])
    assert np.allclose(adjusted(logits, SamplingParams(presence_penalty=0.5), context), [2.0, -2.5, 0.5, 0.5])
    assert np.allclose(adjusted(logits, SamplingParams(frequency_penalty=0.5), context), [2.0, -2.5, 0.0, 0.5])


def test_penalties_come_before_bias_and_bias_before_what_is_allowed() -> None:
    logits = np.array([2.0, -2.0, 1.0, 0.5], np.float32)
    params = SamplingParams(repetition_penalty=2.0, logit_bias={0: 1.0, 3: 9.0}, allowed_token_ids=(0, 1))
    assert np.array_equal(adjusted(logits, params, Context(prompt=[0])), [2.0, -2.0, -np.inf, -np.inf])
    assert np.array_equal(adjusted(logits, SamplingParams(), Context(banned=(0, 2))), [-np.inf, -2.0, -np.inf, 0.5])
    only = Context(allowed=np.array([3]))
    assert sample(logits, SamplingParams(temperature=0.0), seed=0, position=0, context=only) == 3


@pytest.mark.parametrize("min_p", [0.0, 0.25, 0.5, 1.0])
def test_min_p_is_a_share_of_the_most_probable(min_p: float) -> None:
    mass = np.array([0.5, 0.25, 0.15, 0.1])
    law = probabilities(np.log(mass), SamplingParams(min_p=min_p))
    assert np.count_nonzero(law) == np.count_nonzero(mass >= min_p * 0.5 - 1e-15)


def test_logprobs_are_of_the_model_before_any_rule() -> None:
    logits = np.random.default_rng(3).standard_normal(50).astype(np.float32)
    want = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    told = logprobs_of(logits, 17, 5)
    assert told.logprob == pytest.approx(want[17], abs=1e-12) and told.rank == 1 + int((want > want[17]).sum())
    assert [token for token, _ in told.top] == list(np.argsort(-want, kind="stable")[:5])
    ties = logprobs_of(np.array([0.0, 1.0, 1.0, 1.0], np.float32), 3, 2)
    assert ([token for token, _ in ties.top], ties.rank, logprobs_of(logits, 0, 0).top) == ([1, 2], 3, ())
