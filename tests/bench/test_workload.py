"""What a workload must cost is counted: against the operators that a forward pass really calls, and the bytes of the file."""

from __future__ import annotations

import numpy as np
import pytest

from labcore.bench.ceilings import Ceilings
from labcore.bench.engine import EngineRunner
from labcore.bench.workload import DECODES, PREFILL, Costs, Workload
from labcore.lab.operators import record_operators
from labcore.loaders import zoo
from labcore.loaders.lab import lab_checkpoint
from labcore.loaders.load import load_checkpoint
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model

CEILINGS = Ceilings(threads=2, read=10e9, copy=8e9, multiply_adds=100e9, int8_dots=400e9, measured_by="nobody")


@pytest.fixture(scope="module")
def lab() -> LlamaModel:
    return load_model("lab", backend="numpy")


@pytest.mark.parametrize(
    ("workload", "num_tokens", "position"),
    [(Workload(batch=1, prompt_tokens=48, new_tokens=1), 48, 0), (Workload(batch=1, prompt_tokens=32, new_tokens=64), 1, 63)],
    ids=["prefill", "decode"],
)
def test_the_count_is_that_of_the_operators(lab: LlamaModel, workload: Workload, num_tokens: int, position: int) -> None:
    """The same arithmetic as the recorded calls of matrices and attention, and the same bytes of weights and KV."""
    records = record_operators(lab, [3] * num_tokens, position)
    cost = Costs(lab_checkpoint(), "f32").of(workload)
    matrices = [record for record in records if record.operator == "linear"]
    attention = [record for record in records if record.operator == "paged_attention"]
    assert cost.matrix_flops == sum(record.flops for record in matrices)
    assert cost.attention_flops == sum(record.flops for record in attention)
    stored = [record for record in records if record.operator == "store_kv"]
    assert cost.kv_bytes == sum(record.kv_bytes for record in attention + stored)
    norms = [record for record in records if record.operator in ("rms_norm", "add_rms_norm")]
    assert cost.weight_bytes == sum(record.weight_bytes for record in matrices + norms)


def test_packed_weights_are_the_bytes_of_the_file() -> None:
    checkpoint = load_checkpoint("smollm2")
    costs = Costs(checkpoint, "packed")
    file = zoo.FILES["smollm2"].size
    assert costs.packed and 0.97 * file < costs.weight_bytes < file  # less its header and vocabulary
    assert Costs(checkpoint, "f32").weight_bytes == 4 * checkpoint.config.num_parameters


def test_a_batch_reads_the_weights_once_and_each_its_own_keys() -> None:
    costs = Costs(lab_checkpoint(), "packed")
    alone, many = costs.of(DECODES[0]), costs.of(DECODES[-1])
    assert many.weight_bytes == alone.weight_bytes
    assert (many.kv_bytes, many.matrix_flops) == (32 * alone.kv_bytes, 32 * alone.matrix_flops)


def test_the_floor_is_the_slowest_of_bytes_and_arithmetic() -> None:
    assert CEILINGS.floor(bytes=20e9) == 2
    assert CEILINGS.floor(bytes=16e9, copied=True) == 2
    assert CEILINGS.floor(bytes=1, flops=100e9, int8_ops=400e9) == 2
    costs = Costs(lab_checkpoint(), "f32")
    assert costs.of(DECODES[0]).bound(CEILINGS, packed=False) == "bytes"
    assert costs.of(PREFILL).bound(CEILINGS, packed=False) == "arithmetic"
    prefill = costs.of(PREFILL)
    assert prefill.floor(CEILINGS, packed=True) < prefill.floor(CEILINGS, packed=False)


def test_of_two_measurements_of_a_ceiling_the_higher_counts() -> None:
    other = Ceilings(threads=2, read=12e9, copy=7e9, multiply_adds=90e9, int8_dots=None, measured_by="nobody")
    best = CEILINGS.best(other)
    assert (best.read, best.copy, best.multiply_adds, best.int8_dots) == (12e9, 8e9, 100e9, 400e9)
    assert other.best(other).int8_dots is None


def test_prompts_are_never_the_same_twice() -> None:
    prompts = [tuple(ids) for seed in range(20) for ids in DECODES[-1].prompts(1024, seed)]
    assert len(set(prompts)) == len(prompts) == 20 * 32
    assert {len(ids) for ids in prompts} == {32} and np.min(prompts) >= 256 and np.max(prompts) < 1024


@pytest.mark.parametrize("workload", [PREFILL, Workload(batch=3, prompt_tokens=5, new_tokens=4)], ids=lambda w: w.name)
def test_the_engine_runs_a_workload_and_leaves_nothing_behind(lab: LlamaModel, workload: Workload) -> None:
    runner = EngineRunner(lab)
    free = runner.engine.cache.allocator.num_free
    for seed in range(2):
        assert runner.run(workload, workload.prompts(1024, seed)) > 0
    assert not runner.engine.has_unfinished and runner.engine.cache.allocator.num_free == free
