"""The whole engine on the lab model under anything that Hypothesis thinks of: every answer is what its request says alone,
to the last bit of its logits, with all books checked after every action. `labcore soak` runs the same for as long as one likes.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support import exact_backends

from labcore.core.config import POLICIES, PREFIX_CACHES, CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.speculative_config import PROPOSERS, SpeculativeConfig
from labcore.engine.sampling_params import SamplingParams
from labcore.kv.prefix_cache import NoPrefixCache
from labcore.lab.faults import FAULTS, CopyForgetsV
from labcore.lab.soak import Truth, Violation, Watched, soak
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model

WORDS = tuple(range(300, 340))  # what all prompts begin with, more or less of it


@pytest.fixture(scope="session")
def truth(lab_model: LlamaModel) -> Truth:
    return Truth(lab_model)


class EngineMachine(RuleBasedStateMachine):
    model: LlamaModel
    truth: Truth

    @initialize(
        prefix_cache=st.sampled_from(PREFIX_CACHES), policy=st.sampled_from(POLICIES), block_size=st.sampled_from([1, 4, 16]),
        num_blocks=st.integers(5, 30), budget=st.sampled_from([2, 17, 512]), seqs=st.sampled_from([3, 32]),
        chunk=st.sampled_from([None, 1, 3, 16]), watermark=st.integers(0, 2),
        method=st.sampled_from(PROPOSERS), guesses=st.sampled_from([1, 3, 6]),
    )  # fmt: skip
    def start(
        self, prefix_cache: str, policy: str, block_size: int, num_blocks: int, budget: int, seqs: int, chunk: int | None,
        watermark: int, method: str, guesses: int,
    ) -> None:  # fmt: skip
        cache = CacheConfig(block_size=block_size, num_blocks=num_blocks, prefix_cache=prefix_cache)
        limits = SchedulerConfig(
            max_num_batched_tokens=budget, max_num_seqs=seqs, max_chunk_tokens=chunk, watermark_blocks=watermark, policy=policy
        )
        speculative = SpeculativeConfig(method=method, num_draft_tokens=guesses, adaptive=guesses == 3, min_ngram=1)
        self.watched = Watched(self.model, EngineConfig(cache=cache, scheduler=limits, speculative=speculative), self.truth)

    @rule(
        shared=st.integers(0, 30), own=st.lists(st.integers(0, 1023), min_size=1, max_size=4), new=st.integers(1, 8),
        n=st.sampled_from([1, 1, 2, 3]), seed=st.integers(0, 2), temperature=st.sampled_from([0.0, 0.9]),
        priority=st.integers(0, 2), timeout=st.sampled_from([None, None, 1.0, 9.0]), salt=st.sampled_from(["", "x"]),
    )  # fmt: skip
    def add(
        self, shared: int, own: list[int], new: int, n: int, seed: int, temperature: float, priority: int, timeout: float | None,
        salt: str,
    ) -> None:  # fmt: skip
        if self.watched.engine.config.speculative.method == "draft":
            temperature = 0.0  # drawn guesses keep the law, and not the tokens
        params = SamplingParams(max_tokens=new, n=n, seed=seed, temperature=temperature)
        if self.watched.engine.config.scheduler.policy != "priority":
            priority = 0
        self.watched.add((*WORDS[:shared], *own), params, priority=priority, timeout=timeout, salt=salt)

    @precondition(lambda self: self.watched.asked)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.watched.abort(data.draw(st.sampled_from(sorted(self.watched.asked))))

    @rule(seconds=st.sampled_from([0.5, 5.0]))
    def wait(self, seconds: float) -> None:
        self.watched.now += seconds

    @precondition(lambda self: self.watched.asked)
    @rule()
    def step(self) -> None:
        self.watched.step()

    def teardown(self) -> None:
        if hasattr(self, "watched"):
            self.watched.finish()


def test_whatever_happens_an_answer_is_what_its_request_says_alone(lab_model: LlamaModel, truth: Truth) -> None:
    EngineMachine.model, EngineMachine.truth = lab_model, truth
    machine = EngineMachine.TestCase
    machine.settings = settings(max_examples=60, stateful_step_count=25)
    machine().runTest()


def test_a_short_soak_on_each_exact_backend() -> None:
    for name, backend in exact_backends().items():
        counts = soak(load_model("lab", backend=backend), seed=7, num_workloads=40 if name.startswith("native") else 3)
        assert counts.answers > 4 * counts.num_workloads > 0, name
    assert min(counts.requests, counts.steps, counts.tokens) > 0


def test_a_soak_sees_everything_happen(lab_model: LlamaModel) -> None:
    """What a soak says nothing about because it never came up would be worth nothing."""
    counts = soak(lab_model, seed=100, num_workloads=80)
    assert min(counts.aborted, counts.expired, counts.refused, counts.preemptions, counts.copies, counts.evicted_blocks) > 0
    assert min(counts.hit_tokens, counts.accepted, counts.guesses - counts.accepted) > 0


@pytest.mark.parametrize("name", [*FAULTS, "copy that forgets V"])
def test_a_soak_finds_every_fault(lab_model: LlamaModel, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults of history, put into the engine one at a time: within some workloads each is noticed."""
    if name in FAULTS:
        fault = FAULTS[name]
        monkeypatch.setattr("labcore.engine.llm_engine.Scheduler", fault.kind)
        monkeypatch.setattr("labcore.engine.llm_engine.PagedCache", fault.pool)
        trees = {"none": NoPrefixCache, "radix": fault.tree} if fault.tree else {}
        monkeypatch.setattr("labcore.kv.paged_cache.PREFIX_CACHES", {**_caches(), **trees})
    else:
        monkeypatch.setattr("labcore.engine.llm_engine.ModelRunner", CopyForgetsV)
    with pytest.raises(Violation, match=r"workload [0-9]+: "):
        soak(lab_model, num_workloads=400)


def _caches() -> dict[str, object]:
    from labcore.kv.paged_cache import PREFIX_CACHES as caches

    return dict(caches)
