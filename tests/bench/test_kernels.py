"""What the kernel benchmark compares is the same operator everywhere, and its table is complete."""

from __future__ import annotations

import numpy as np
import pytest

from labcore.bench import attention, kernels
from labcore.bench.attention import bench_attention, decode_call, scattered
from labcore.bench.cases import bring, cases
from labcore.bench.contenders import NATIVE, PLAIN, contenders
from labcore.bench.harness import timed
from labcore.bench.kernels import ARRAYS, GOALS, bench_kernels
from labcore.bench.roofline import draw, points_of
from labcore.core.config import ModelConfig
from labcore.core.errors import InvalidConfig
from labcore.kernels.native import NativeBackend, runnable_isas
from labcore.kernels.reference import ReferenceBackend
from labcore.kernels.registry import backend_statuses, get_backend

AVAILABLE = [status.name for status in backend_statuses() if status.available]
ORACLE = ReferenceBackend(np.float64)
NEEDS_NATIVE = pytest.mark.skipif(not runnable_isas(), reason="the native kernels are not built")


@pytest.mark.parametrize("operator", list(cases(64, 128)))
@pytest.mark.parametrize("name", AVAILABLE)
def test_a_case_is_the_same_operator_on_every_backend(name: str, operator: str) -> None:
    case = cases(70, 256)[operator]
    backend = get_backend(name)
    got, want = case.call_on(backend)(), case.call_on(ORACLE)()
    assert np.asarray(backend.to_numpy(got)).shape == want.shape
    assert kernels.error_against(want, backend, got) < 3e-6
    assert kernels.error_against(want * 1.001, backend, got) > 5e-4  # an error shows


@pytest.mark.parametrize("operator", list(ARRAYS))
def test_contenders_of_a_race_compute_the_same(operator: str) -> None:
    calls = contenders(33, 192, threads=1)[operator]
    assert set(calls) >= {PLAIN, "numpy out="} and ({NATIVE} <= set(calls)) == bool(runnable_isas())
    want = np.asarray(calls[PLAIN]())
    for name, call in calls.items():
        for _ in range(2):  # a result that is written again and again stays right
            assert np.allclose(np.asarray(call()), want, rtol=2e-5, atol=2e-6), name


@NEEDS_NATIVE
def test_results_are_written_into_the_same_arrays() -> None:
    for operator, calls in contenders(8, 64, threads=1).items():
        assert calls[NATIVE]() is calls[NATIVE](), operator
        assert np.shares_memory(calls["numpy out="](), calls["numpy out="]()), operator


def test_arguments_arrive_unpacked() -> None:
    x = np.ones((3, 64), np.float32)
    for name in AVAILABLE:
        backend = get_backend(name)
        assert np.array_equal(np.asarray(backend.to_numpy(bring(backend, x))), x)


def test_bytes_and_operations_of_a_case() -> None:
    every = cases(512, 512)
    n = 512 * 512
    assert every["rms_norm"].bytes == 8 * n and every["add_rms_norm"].bytes == 16 * n and every["silu_and_mul"].bytes == 12 * n
    assert every["linear"].flops == 2 * 512 * 512 * 1536
    assert every["paged_attention"].flops == 4 * 8 * 64 * sum(range(1, 513))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny sizes, a single call each: the table is looked at, not the times."""
    monkeypatch.setattr(kernels, "SIZES", {"small": (32, 64), "large": (48, 128)})
    monkeypatch.setattr(kernels, "timed", lambda call, seconds=0.0: timed(call, seconds=0.0))
    monkeypatch.setattr(kernels, "measure_ceilings", lambda threads: attention.measure_ceilings(1, 1 << 20, tries=1))


@pytest.mark.usefixtures("quick")
def test_the_table_has_every_operator_on_every_backend_and_every_goal() -> None:
    document = bench_kernels(rounds=1, threads=1)
    assert [(row["operator"], row["backend"]) for row in document["rows"]] == [
        (operator, name) for operator in cases(32, 64) for name in AVAILABLE
    ]
    for row in document["rows"]:
        assert row["p99"] >= row["p50"] > 0 and row["error"] < 3e-6 and row["share_of_ceiling"] > 0, row
        assert row["bytes_per_second"] * row["intensity"] == pytest.approx(row["flops_per_second"])
    assert [row["error"] for row in document["rows"] if row["backend"] == "reference"] == [0.0] * len(cases(32, 64))
    assert len(document["goals"]) == len(GOALS) + len(ARRAYS)
    assert {row["name"] for row in document["backends"]} == {status.name for status in backend_statuses()}
    large = bench_kernels(size="large", operator="rms_norm", rounds=1, threads=1)
    assert {row["operator"] for row in large["rows"]} == {"rms_norm"} and set(large["contenders"]) == {"rms_norm"}
    assert "reference" not in {row["backend"] for row in large["rows"]}


@pytest.mark.usefixtures("quick")
def test_without_native_kernels_its_goals_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*arguments: object) -> None:
        raise kernels.get_backend("no such backend")  # raises BackendUnavailable itself

    monkeypatch.setattr("labcore.bench.contenders.native_calls", absent)
    document = bench_kernels(operator="softmax", rounds=1, threads=1)
    assert [(goal["value"], goal["met"]) for goal in document["goals"]] == [(None, False)] * 2
    assert all("native" in goal["why"] for goal in document["goals"])


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(InvalidConfig, match=r"operator is 'gelu'; expected one of embedding, .*softmax"):
        bench_kernels(operator="gelu")


def test_the_picture_has_the_points_of_one_backend() -> None:
    rows = [
        {"operator": "a", "backend": "x", "intensity": 0.5, "flops_per_second": 1e9},
        {"operator": "b", "backend": "y", "intensity": 2.0, "flops_per_second": 1e9},
        {"operator": "copy", "backend": "x", "intensity": 0.0, "flops_per_second": 0.0},
    ]
    backends = [{"name": "y", "available": False}, {"name": "x", "available": True}]
    points = points_of({"rows": rows, "backends": backends})
    ceilings = {"read": 1e10, "multiply_adds": 1e11, "int8_dots": None, "threads": 2}
    [axes] = draw(ceilings, points).axes
    labels = [line.get_label() for line in axes.get_lines()]
    assert labels == ["float32: 100 G/s", "a"]


def test_a_query_over_scattered_blocks_reads_every_byte_that_is_counted() -> None:
    config = ModelConfig.lab()
    backend = get_backend()
    call, num_bytes = decode_call(backend, config, 100)
    call()
    assert num_bytes == 100 * config.kv_bytes_per_token()
    batch = scattered(100, 1)
    assert sorted(batch.block_tables) == list(range(7)) and batch.positions.tolist() == [99]


@NEEDS_NATIVE
def test_attention_beside_torch_computes_the_same() -> None:
    """The two calls are given the same numbers in the same places: the outputs agree where torch is there to be asked."""
    torch_calls = pytest.importorskip("labcore.bench.torch_calls")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((40, heads, 64), dtype=np.float32) for heads in (6, 2, 2))
    backend, batch = NativeBackend(threads=1), scattered(40, 40)
    pool = backend.new_kv_cache((1, 2, 3, 2, attention.BLOCK_SIZE, 64))[0]
    backend.store_kv(k, v, pool, batch.slot_mapping)
    theirs = torch_calls.causal_attention(q, k, v)()[0].transpose(0, 1).numpy()
    assert np.allclose(backend.paged_attention(q, pool, batch, 64**-0.5), theirs, atol=2e-6)


def test_the_attention_report_has_its_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CONTEXTS", (20,))
    monkeypatch.setattr(attention, "PROMPTS", (24,))
    ceilings = attention.measure_ceilings(1, 1 << 20, tries=1)
    monkeypatch.setattr(attention, "measure_ceilings", lambda threads: ceilings)
    document = bench_attention(ModelConfig.lab(), threads=1, rounds=1)
    assert [row["context"] for row in document["decode"]] == [20] and document["decode"][0]["share_of_floor"] > 0
    assert [row["tokens"] for row in document["prefill"]] == [24]
    assert [goal["goal"] for goal in document["goals"]] == [">= 0.7"]
