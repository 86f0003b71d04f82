"""INT8 KV on every backend here: what is stored, what is read, what it costs in logits, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from support import BACKENDS, Request, alone, exact_backends, paged_batch, run_engine

from labcore.core.config import CacheConfig, SchedulerConfig
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.api import Backend
from labcore.kernels.integer_reference import expand_kv, quantize_kv
from labcore.kernels.reference import ReferenceBackend
from labcore.lab.equivalence import all_logits
from labcore.model.weights import load_model
from labcore.quant.error import logit_error

F32 = np.float32


ALL = {"reference": lambda: ReferenceBackend(np.float64), **BACKENDS}


@pytest.fixture(params=ALL)
def backend(request: pytest.FixtureRequest) -> Backend:
    return ALL[request.param]()


def own(backend: Backend, x: np.ndarray) -> np.ndarray:
    """In the precision that the backend computes in."""
    return x.astype(np.float64 if backend.name == "reference" else np.float32)


def test_a_token_lies_in_its_slot_with_its_scale(backend: Backend) -> None:
    rng = np.random.default_rng(1)
    kv = backend.new_kv_cache((1, 2, 5, 3, 4, 8), "int8")[0]
    assert kv.dtype == np.int8 and kv.shape == (2, 5, 3, 4, 12)
    k, v = rng.standard_normal((2, 7, 3, 8), F32)
    slots = rng.permutation(20)[:7]
    backend.store_kv(own(backend, k), own(backend, v), kv, slots)
    for t, slot in enumerate(slots):
        assert np.array_equal(kv[0, slot // 4, :, slot % 4], quantize_kv(k[t]))
        assert np.array_equal(kv[1, slot // 4, :, slot % 4], quantize_kv(v[t]))
    assert np.count_nonzero(np.any(kv, axis=(2, 4))) == 2 * 7  # nothing else was touched


def test_attention_reads_what_the_pool_expands_to(backend: Backend) -> None:
    rng = np.random.default_rng(2)
    batch = paged_batch(rng, [1, 3, 17], [9, 3, 40], 4, 20)
    pool = backend.new_kv_cache((1, 2, 20, 2, 4, 16), "int8")[0]
    pool[:] = quantize_kv(rng.standard_normal((2, 20, 2, 4, 16), F32))
    q = own(backend, rng.standard_normal((21, 4, 16)))
    expanded = backend.paged_attention(q, own(backend, expand_kv(pool)), batch, 0.25)
    assert np.array_equal(backend.paged_attention(q, pool, batch, 0.25), expanded)


def test_stale_bytes_beyond_a_sequence_are_not_read(backend: Backend) -> None:
    """A freed block may hold anything, a scale of NaN too."""
    rng = np.random.default_rng(3)
    batch = paged_batch(rng, [2], [6], 4, 4)
    pool = np.full((2, 4, 2, 4, 20), -1, np.int8)  # the bytes of a NaN
    clean = np.zeros_like(pool)
    for kv in (pool, clean):
        rng = np.random.default_rng(4)
        k, v = own(backend, rng.standard_normal((2, 6, 2, 16)))
        table = batch.block_tables
        backend.store_kv(k, v, kv, table[np.arange(6) // 4] * 4 + np.arange(6) % 4)
    q = own(backend, rng.standard_normal((2, 4, 16)))
    out = backend.paged_attention(q, pool, batch, 0.25)
    assert np.isfinite(out).all() and np.array_equal(out, backend.paged_attention(q, clean, batch, 0.25))


class Rounding(ReferenceBackend):
    """A float64 pool in which each row of K and V is replaced by whole multiples of amax / 127, by division."""

    def store_kv(self, k: np.ndarray, v: np.ndarray, kv: np.ndarray, slot_mapping: np.ndarray) -> None:
        steps = [np.abs(x).max(axis=-1, keepdims=True) / 127 for x in (k, v)]
        super().store_kv(*(np.rint(x / step) * step for x, step in zip((k, v), steps, strict=True)), kv, slot_mapping)


def test_what_it_costs_in_logits() -> None:
    """The error of the lab model's logits is that of K and V rounded to 127 steps, and nothing besides."""
    model = load_model("lab", backend="reference")
    ids = np.random.default_rng(5).integers(0, 1024, 60).tolist()
    exact, int8 = all_logits(model, ids), all_logits(model, ids, "int8")
    error = logit_error(exact, int8)
    assert 0 < error.mean_kl < 0.01 and error.same_best > 0.9
    rounded = all_logits(load_model("lab", backend=Rounding(np.float64)), ids)
    assert logit_error(rounded, int8).mean_kl < error.mean_kl / 1000
    assert model.new_kv_cache(CacheConfig(num_blocks=2, kv_dtype="int8")).nbytes == 2 * 4 * 2 * 2 * 16 * (32 + 4)


@pytest.mark.parametrize("name", exact_backends())
def test_scheduling_changes_no_bit_with_int8_kv_either(name: str) -> None:
    model = load_model("lab", backend=exact_backends()[name])
    rng = np.random.default_rng(6)
    params = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    requests = [Request(tuple(rng.integers(0, 1024, n).tolist()), params) for n in (3, 21, 9)]
    cache = CacheConfig(block_size=4, num_blocks=9, kv_dtype="int8")
    tight = SchedulerConfig(max_num_batched_tokens=7, watermark_blocks=0)
    together, records = run_engine(model, requests, cache=cache, scheduler=tight)
    assert sum(len(record.preempted) for record in records) > 0
    ample = CacheConfig(block_size=16, num_blocks=8, kv_dtype="int8")
    for request, answer in zip(requests, together, strict=True):
        [apart], _ = run_engine(model, [request], cache=ample, scheduler=SchedulerConfig())
        assert apart == answer and apart.logits != alone(model, request).logits
