"""Rejection sampling keeps the law: chi-square of first tokens and of pairs, and the same tests reject what is faulty."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from labcore.core.config import CacheConfig, EngineConfig, SpeculativeConfig
from labcore.engine import model_runner
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.plan import Draft
from labcore.engine.sampler import draw, probabilities
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.verify import rejected, residual
from labcore.lab import spec_law
from labcore.lab.equivalence import all_logits
from labcore.lab.spec_law import FAULTS, SIZE, WORLDS, World, answers, coarse_world, counts_of, p_value, world
from labcore.model.llama import LlamaModel

MANY, FEW = 200_000, 16_000
FAULTY = 1e-6


def told(here: World, tokens: np.ndarray) -> tuple[float, float]:
    """The p-values of the first tokens and of the pairs."""
    first, pairs = counts_of(tokens)
    return p_value(first, here.p[0]), p_value(pairs, here.joint)


@pytest.mark.parametrize("name", WORLDS)
def test_the_law_is_kept(name: str) -> None:
    here = world(seed=19, **WORLDS[name])
    assert np.abs(here.p[0] - here.q[0]).sum() / 2 > 0.1  # the draft is no copy of the model
    if name != "whole laws":
        assert (here.joint == 0).any() and ((here.q[0] > 0) & (here.p[0] == 0)).any()  # guesses that may never stand
    first, pairs = told(here, answers(here, MANY, seed=5))
    assert first > 0.001 and pairs > 0.001


def test_p_values_over_many_seeds_are_uniform() -> None:
    """A test that finds nothing once may be blind: over 100 worlds its p-values must also be as often small as large."""
    values = []
    for seed in range(100):
        here = world(seed, **list(WORLDS.values())[seed % 4])
        if np.count_nonzero(here.p[0]) > 1:  # else there is nothing to test
            values.append(told(here, answers(here, 1_000, seed=1000 + seed)))
    assert len(values) > 95
    for each in zip(*values, strict=True):
        assert spec_law.uniform_p_value(each) > 0.01
        assert min(each) > 1e-4


@pytest.mark.parametrize("name", ["not divided by q", "residual not subtracted"])
@pytest.mark.parametrize("rules", WORLDS)
def test_a_faulty_way_is_rejected(name: str, rules: str) -> None:
    here = world(seed=19, **WORLDS[rules])
    assert max(told(here, answers(here, FEW, seed=5, verify=FAULTS[name]))) < FAULTY


@pytest.mark.parametrize("rules", ["top-k", "top-p"])
def test_q_before_truncation_is_rejected(rules: str) -> None:
    """A14: guesses are drawn after the rules, and the verifier is told the law before them."""
    here = world(seed=19, **WORLDS[rules])
    assert max(told(here, answers(here, FEW, seed=5, told=here.raw))) < FAULTY


def test_a_coin_that_may_be_zero_is_compared_strictly() -> None:
    """A15: coins of sixteenths are exactly 0 often; here they keep the law, if a guess without mass never stands."""
    here = coarse_world()
    right = answers(here, FEW, seed=5, grain=16)
    assert min(told(here, right)) > 0.001 and not np.isin(right, [0, 1]).any()
    faulty = answers(here, FEW, seed=5, verify=FAULTS["coin inclusive"], grain=16)
    assert max(told(here, faulty)) == 0.0 and np.isin(faulty, [0, 1]).any()
    with_mass = faulty[~np.isin(faulty, [0, 1]).any(axis=1)]  # and those with mass have not their shares either
    assert max(told(here, with_mass)) < FAULTY


def test_the_faulty_ways_differ_from_the_right_one_in_one_thing() -> None:
    """What they are made with, given the right rules, is `rejected`, bit for bit."""
    right = spec_law.verifier(lambda u, p, q: u * q < p, residual)
    rng = np.random.default_rng(1)
    for seed in range(40):
        here = world(seed, banned=seed % 5)
        a, b = rng.integers(0, SIZE, 2)
        draft = Draft((int(a), int(b)), (here.q[0], here.q[1][a]))
        laws, coins, numbers = [here.p[0], here.p[1][a], here.p[2][a, b]], rng.random(3).tolist(), rng.random(3).tolist()
        given = (draft, laws, coins.__getitem__, numbers.__getitem__)
        assert right(*given) == rejected(*given)


def test_the_tools_are_right() -> None:
    for degrees in (1, 2, 3, 7, 8, 63, 64):
        for x in (0.1, 1.0, 7.5, 60.0, 200.0):
            halves = torch.tensor([degrees / 2, x / 2], dtype=torch.float64)
            want = float(torch.special.gammaincc(*halves))
            assert spec_law.survival(x, degrees) == pytest.approx(want, rel=1e-9, abs=1e-300)
    law = np.array([0.5, 0.5, 0.0])
    assert p_value(np.array([50, 50, 0]), law) == 1.0 and p_value(np.array([50, 49, 1]), law) == 0.0
    assert spec_law.chi_square(np.array([96, 3, 1]), np.array([0.96, 0.02, 0.02])) == (0.0, 1)  # two small cells are one
    rng = np.random.default_rng(0)
    assert spec_law.uniform_p_value(rng.random(200)) > 0.01 > spec_law.uniform_p_value(rng.random(200) ** 1.5)
    laws, u = rng.dirichlet(np.ones(SIZE), 500), rng.random(500)
    assert spec_law._draw(laws, u).tolist() == [draw(*pair) for pair in zip(laws, u, strict=True)]


# through the whole engine

PROMPT = [300, 301, 302]
PARAMS = SamplingParams(max_tokens=3, temperature=1.2, top_k=4, ignore_eos=True)
DRAFT = SpeculativeConfig(method="draft", num_draft_tokens=2, adaptive=False, draft_layers=3)


def pairs_of(model: LlamaModel, num: int) -> tuple[np.ndarray, int, int]:
    """The first two tokens of many requests of one prompt, and how many guesses were made and stood."""
    records: list[Any] = []
    engine = LLMEngine(model, EngineConfig(cache=CacheConfig(block_size=4, num_blocks=200), speculative=DRAFT), records.append)
    for seed in range(num):
        engine.add_request(str(seed), PROMPT, replace(PARAMS, seed=seed))
    tokens: dict[str, list[int]] = {}
    while engine.has_unfinished:
        for out in engine.step():
            tokens.setdefault(out.request_id, []).extend(out.token_ids)
    shares = [share for record in records for share in record.scheduled]
    pairs = np.array([tokens[str(seed)][:2] for seed in range(num)])
    return pairs, sum(share.num_draft for share in shares), sum(share.num_accepted for share in shares)


def joint_law(model: LlamaModel, plain: SamplingParams) -> np.ndarray:
    """Of the first two tokens, (vocab_size, vocab_size): what the sampler says of the model's own logits."""
    law = probabilities(all_logits(model, PROMPT)[-1], plain)
    joint = np.zeros((len(law), len(law)))
    for token in np.flatnonzero(law):
        joint[token] = law[token] * probabilities(all_logits(model, [*PROMPT, int(token)])[-1], plain)
    return joint


def p_values(model: LlamaModel, pairs: np.ndarray) -> tuple[float, float]:
    joint = joint_law(model, PARAMS)
    counts = np.zeros_like(joint, np.int64)
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    return p_value(counts.sum(axis=1), joint.sum(axis=1)), p_value(counts, joint)


def test_the_engine_keeps_the_law(lab_model: LlamaModel) -> None:
    pairs, guessed, stood = pairs_of(lab_model, 3_000)
    assert min(p_values(lab_model, pairs)) > 0.001
    assert 0.1 < stood / guessed < 0.9  # both outcomes were met


def test_a_fault_in_the_engine_would_be_seen(lab_model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "rejected", FAULTS["residual not subtracted"])
    assert min(p_values(lab_model, pairs_of(lab_model, 1_000)[0])) < FAULTY
