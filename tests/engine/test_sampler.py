"""The law a token is drawn from, the random numbers it is drawn with, and what they may depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import Request, alone, run_engine

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.core.errors import InvalidRequest, NumericalError
from labcore.engine.sampler import NOTHING, Context, Place, Sampler, draw, law_of, probabilities, sample, uniform
from labcore.engine.sampling_params import SamplingParams
from labcore.model.llama import LlamaModel


def test_greedy_takes_the_first_of_equals() -> None:
    assert sample(np.array([1.0, 3.0, 3.0], np.float32), SamplingParams(temperature=0.0), seed=0, position=5) == 1


def test_temperature_law_is_softmax() -> None:
    logits = np.random.default_rng(0).standard_normal(50).astype(np.float32) * 4
    want = torch.softmax(torch.from_numpy(logits).double() / 0.7, 0).numpy()
    assert np.allclose(probabilities(logits, SamplingParams(temperature=0.7)), want, atol=1e-15)


def test_top_k_keeps_k_and_ties_go_to_the_lower_id() -> None:
    law = probabilities(np.array([1.0, 2.0, 2.0, 2.0], np.float32), SamplingParams(top_k=2))
    assert np.allclose(law, [0, 0.5, 0.5, 0])


@pytest.mark.parametrize(
    ("mass", "top_p", "kept"),
    [
        ([0.5, 0.41, 0.09], 0.9, 2), ([0.5, 0.41, 0.09], 0.95, 3), ([0.5, 0.41, 0.09], 0.5, 1), ([0.5, 0.41, 0.09], 1e-8, 1),
        ([0.5, 0.41, 0.09], 1.0, 3), ([0.25, 0.25, 0.25, 0.25], 0.5, 2), ([0.97, 0.01, 0.01, 0.01], 1 - 1e-7, 4),
    ],
)  # fmt: skip
def test_top_p_keeps_the_token_that_crosses(mass: list[float], top_p: float, kept: int) -> None:
    """A33: keep while the mass *before* a token is below p: the one that crosses stays, and one always does."""
    law = probabilities(np.log(np.array(mass)).astype(np.float64), SamplingParams(top_p=top_p))
    assert np.count_nonzero(law) == kept
    assert law.sum() == pytest.approx(1)


def test_top_p_is_of_the_mass_that_top_k_left() -> None:
    law = probabilities(np.log(np.array([0.4, 0.3, 0.2, 0.1])), SamplingParams(top_k=2, top_p=0.5))
    assert np.allclose(law, [1, 0, 0, 0])  # 0.4 / 0.7 is above one half


@pytest.mark.parametrize("temperature", [1e-6, 1e-300, 5e-324])
def test_a_temperature_near_zero_is_nearly_greedy(temperature: float) -> None:
    law = probabilities(np.array([1.0, 2.0, -5.0], np.float32), SamplingParams(temperature=temperature))
    assert np.array_equal(law, [0, 1, 0])


def test_samples_follow_the_law() -> None:
    """Chi-square over 20,000 draws with 7 degrees of freedom: 24.3 is passed once in a thousand."""
    logits = np.linspace(0, 3, 8).astype(np.float32)
    params = SamplingParams(temperature=1.3)
    law = probabilities(logits, params)
    counts = np.bincount([sample(logits, params, seed=9, position=i) for i in range(20_000)], minlength=8)
    assert ((counts - 20_000 * law) ** 2 / (20_000 * law)).sum() < 24.3


def test_a_token_of_no_mass_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a random number of exactly 0, nor for the largest below 1."""
    from labcore.engine import sampler

    logits = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf], np.float32)
    for u, token in [(0.0, 1), (0.499, 1), (0.5, 3), (1 - 2.0**-53, 3)]:
        monkeypatch.setattr(sampler, "uniform", lambda *place, u=u: u)
        assert sample(logits, SamplingParams(), seed=0, position=0) == token


def test_random_numbers_are_fixed_by_their_place() -> None:
    """The stream is part of the contract: stored outputs depend on it."""
    assert uniform(42, 0, 7) == 0.4074136540795371
    places = [(s, i, p) for s in (0, 1, 2**64 - 1) for i in (0, 1) for p in (0, 1, 8191)]
    values = [uniform(*place) for place in places]
    assert len(set(values)) == len(places)
    assert all(0 <= u < 1 for u in values)
    assert values == [uniform(*place) for place in places]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("greedy", [True, False])
def test_what_is_no_number_is_named_and_not_sampled(greedy: bool, value: float) -> None:
    logits = np.full(9, value if value == -np.inf else 0.0, np.float32)
    logits[4] = value
    with pytest.raises(NumericalError, match=r"largest logit of position 3 is -?(nan|inf) \(token id [04]\)"):
        sample(logits, SamplingParams(temperature=0.0 if greedy else 1.0), seed=0, position=3)


def test_seeded_tokens_do_not_depend_on_batch_mates(lab_model: LlamaModel) -> None:
    """A22: alone, with a mate that has a seed, one that has none, one that joins late, in any order."""
    mine = Request((5, 6, 7), SamplingParams(max_tokens=10, temperature=0.8, seed=42, ignore_eos=True))
    mates = [Request((9, 9), SamplingParams(max_tokens=6, temperature=0.8, seed=seed)) for seed in (None, 1, 42)]
    truth = alone(lab_model, mine)
    limits = {"cache": CacheConfig(block_size=4, num_blocks=40), "scheduler": SchedulerConfig(max_num_batched_tokens=8)}
    for mate in mates:
        for order, late in [(0, 0), (1, 0), (0, 3), (1, 3)]:
            requests, arrivals = ([mine, mate], [0, late]) if order == 0 else ([mate, mine], [0, late])
            answers, _ = run_engine(lab_model, requests, arrivals=arrivals, **limits)
            assert answers[requests.index(mine)] == truth


@pytest.mark.parametrize(
    ("field", "value"),
    [(f, v) for f in ("temperature", "top_p") for v in (float("nan"), float("inf"), -float("inf"), -0.1, "1", None, True)]
    + [("top_p", 0.0), ("top_p", 1.1), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", float("nan"))]
    + [("top_k", -1), ("top_k", float("nan")), ("seed", -1), ("seed", 2**64), ("seed", 0.5), ("stop_token_ids", (-1,))],
)  # fmt: skip
def test_bad_parameters_name_the_field(field: str, value: object) -> None:
    """A17, A21: a NaN passes "x < lo or x > hi"; it must not pass here."""
    with pytest.raises(InvalidRequest, match=f"^{field} is "):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


class Kernels:
    """The contract of a backend that draws: arrays in, arrays out; -1 and NaN where nothing may be chosen."""

    def law(self, rows: np.ndarray, *rules: np.ndarray) -> np.ndarray:
        (temperature, top_k, top_p, min_p), (starts, ids, values) = rules[:4], rules[-3:]
        assert (rows.dtype, temperature.dtype, top_k.dtype, values.dtype) == (np.float32, np.float64, np.int64, np.float64)
        laws = np.full(rows.shape, np.nan)
        for i, row in enumerate(rows.astype(np.float64)):
            row[ids[starts[i] : starts[i + 1]]] = values[starts[i] : starts[i + 1]]
            if np.isfinite(row.max()):
                own = SamplingParams(temperature=temperature[i], top_k=top_k[i], top_p=top_p[i], min_p=min_p[i])
                laws[i] = law_of(row, own)
        return laws

    def draw(self, rows: np.ndarray, *rules: np.ndarray) -> np.ndarray:
        laws = self.law(rows, *rules)
        return np.array([-1 if np.isnan(law[0]) else draw(law, u) for law, u in zip(laws, rules[4], strict=True)])


def test_a_backend_that_draws_is_asked_the_same() -> None:
    """Through its arrays come the same tokens and laws: all rules, a top_k past a kernel's numbers, all tokens banned, NaN."""
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((7, 12)).astype(np.float32)
    logits[5, 4] = np.nan
    everything, said = Context(banned=frozenset(range(12))), Context(prompt=[1, 2], output=[2, 2, 5])
    some = Context(allowed=np.array([3, 4, 7]))
    ruled = SamplingParams(repetition_penalty=1.5, presence_penalty=0.5, logit_bias={5: 2.0}, top_p=0.8, min_p=0.05)
    asked = [
        (0, SamplingParams(top_k=2**63), NOTHING), (1, ruled, said), (2, SamplingParams(top_k=3), some), (3, ruled, everything),
        (4, SamplingParams(temperature=0.0, presence_penalty=1.0), said), (5, ruled, said),
        (6, SamplingParams(top_k=10**30), some),
    ]  # fmt: skip
    places = [Place(row, params, context, u=float(rng.random()), position=9) for row, params, context in asked]
    plain, kernels = Sampler(), Sampler(Kernels())
    for own, other in zip(plain.choose(logits, places), kernels.choose(logits, places), strict=True):
        assert own == other if isinstance(own, int) else str(own) == str(other)
    for i, (own, other) in enumerate(zip(plain.laws(logits, places), kernels.laws(logits, places), strict=True)):
        assert isinstance(own, NumericalError) == isinstance(other, NumericalError) == (i in (3, 5))
        assert str(own) == str(other) if isinstance(own, NumericalError) else np.array_equal(own, other)


def test_an_id_outside_the_vocabulary_is_no_token_of_another_row() -> None:
    places = [Place(row, SamplingParams(), Context(banned=frozenset({bad})), 0.5, 0) for row, bad in ((0, 6), (1, 1))]
    with pytest.raises(IndexError, match="6; expected ids below 5"):
        Sampler().laws(np.zeros((2, 5)), places)
    with pytest.raises(IndexError, match="-1 to"):
        Sampler().choose(np.zeros((2, 5)), [places[1]._replace(context=Context(banned=frozenset({-1})))])
