"""Every operator on every backend, on awkward shapes, against the float64 oracle; and the oracle against torch."""

from __future__ import annotations

import numpy as np
import pytest
from support import BACKENDS, FIRST_RUNGS, ids, paged_batch

from labcore.kernels.api import Backend
from labcore.kernels.reference import ReferenceBackend
from labcore.quant.quantized_tensor import QuantizedTensor

ORACLE = ReferenceBackend(np.float64)
SHAPES = [(1, 1), (3, 17), (17, 3), (5, 64), (2, 1823), (1823, 781)]
EPS = 1e-5


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape
    return float(np.abs(got.astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-30))


def both(
    backend: Backend, operator: str, *args: object, weights: dict[str, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The operator on the backend in its own precision, and on the oracle in float64; `weights` are prepared by each."""
    mine = [*args, *backend.prepare(weights or {}).values()]
    wide = [a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype == np.float32 else a for a in args]
    theirs = [*wide, *ORACLE.prepare(weights or {}).values()]
    return getattr(backend, operator)(*mine), getattr(ORACLE, operator)(*theirs)


EVERY = BACKENDS | FIRST_RUNGS


@pytest.fixture(params=EVERY)
def backend(request: pytest.FixtureRequest) -> Backend:
    return EVERY[request.param]()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("operator", ["rms_norm", "add_rms_norm", "silu_and_mul", "softmax", "linear", "embedding", "rope"])
def test_operator_matches_the_oracle(backend: Backend, operator: str, shape: tuple[int, int]) -> None:
    rows, dim = shape
    rng = np.random.default_rng(rows * 7919 + dim)
    x, y = normal(rng, rows, dim), normal(rng, rows, dim)
    if operator == "rms_norm":
        weight = normal(rng, dim)
        got, want = backend.rms_norm(x, weight, EPS), ORACLE.rms_norm(x.astype(float), weight.astype(float), EPS)
    elif operator == "add_rms_norm":
        weight = normal(rng, dim)
        got, total = backend.add_rms_norm(x, y, weight, EPS)
        want, _ = ORACLE.add_rms_norm(x.astype(float), y.astype(float), weight.astype(float), EPS)
        assert np.array_equal(total, x + y)
    elif operator == "silu_and_mul":
        got, want = both(backend, operator, x * 10, y)
    elif operator == "softmax":
        got, want = both(backend, operator, x * 10)
    elif operator == "linear":
        outputs = 1 + dim // 2
        got, want = both(backend, operator, x[:70], weights={"w": normal(rng, outputs, dim)})
        biased, wanted = both(backend, operator, x[:70], weights={"w": normal(rng, outputs, dim), "b": normal(rng, outputs)})
        assert relative_error(biased, wanted) < 3e-6
    elif operator == "embedding":
        got, want = both(backend, operator, ids(rng.integers(0, rows, 40)), weights={"w": x})
        assert np.array_equal(got, want)
    else:
        heads, dim = 3, 2 * (1 + dim // 20)
        angles = rng.random((rows, dim // 2)) * 100
        tables = {"rope.cos": np.cos(angles), "rope.sin": np.sin(angles)}
        got, want = both(backend, operator, normal(rng, 9, heads, dim), ids(rng.integers(0, rows, 9)), weights=tables)
    assert relative_error(got, want) < 3e-6


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0", "Q4_1"])
def test_a_packed_matrix_stands_for_its_expansion(backend: Backend, format: str) -> None:
    """Rows looked up are the expansion, bit for bit; products are its products, within what int8 activations cost.

    What they are to the bit on the native backend is in test_packed_products.py.
    """
    import gguf

    rng = np.random.default_rng(5)
    dense = normal(rng, 37, 96)
    packed = QuantizedTensor(format, (37, 96), gguf.quants.quantize(dense, gguf.GGMLQuantizationType[format]))
    weights = backend.prepare({"packed": packed, "expanded": packed.dequantize()})
    x = normal(rng, 70, 96)
    got, want = (backend.to_numpy(backend.linear(x, weights[name])) for name in ("packed", "expanded"))
    assert np.array_equal(got, want) or (backend.name == "native" and relative_error(got, want) < 0.01)
    rows = ids([36, 0, 5])
    assert np.array_equal(backend.embedding(rows, weights["packed"]), packed.dequantize()[rows])


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 2), (3, 3, 17 * 2), (9, 3, 64), (8, 1, 40)])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_paged_attention_matches_the_oracle(backend: Backend, heads: int, kv_heads: int, dim: int, block_size: int) -> None:
    """Any mix of queries over scattered blocks; unwritten slots hold NaN, which must never be touched."""
    rng = np.random.default_rng(heads * 100 + block_size)
    queries, contexts = [1, 3, 17, 1, 70], [1, 3, 64, 600, 130]
    num_blocks = sum(-(-c // block_size) for c in contexts) + 2
    batch = paged_batch(rng, queries, contexts, block_size, num_blocks)
    kv = np.full((2, num_blocks, kv_heads, block_size, dim), np.nan, np.float32)
    for s, context in enumerate(contexts):
        table = batch.block_tables[batch.block_table_start[s] : batch.block_table_start[s + 1]]
        p = np.arange(context)
        kv[:, table[p // block_size], :, p % block_size] = normal(rng, context, 2, kv_heads, dim)
    q = normal(rng, batch.num_tokens, heads, dim)
    got, want = both(backend, "paged_attention", q, kv, batch, dim**-0.5)
    assert relative_error(got, want) < 3e-6


def test_store_kv_writes_each_token_into_its_slot(backend: Backend) -> None:
    rng = np.random.default_rng(3)
    kv = backend.new_kv_cache((1, 2, 5, 3, 4, 8))[0]
    k, v = normal(rng, 7, 3, 8), normal(rng, 7, 3, 8)
    slots = rng.permutation(20)[:7]
    backend.store_kv(k, v, kv, ids(slots))
    for t, slot in enumerate(slots):
        assert np.array_equal(kv[0, slot // 4, :, slot % 4], k[t])
        assert np.array_equal(kv[1, slot // 4, :, slot % 4], v[t])
    assert np.count_nonzero(np.abs(kv).sum(axis=(2, 4))) == 2 * 7  # nothing else was touched


def test_the_oracle_agrees_with_torch() -> None:
    """What the others are tested against is tested against code that is not ours."""
    import torch  # here: the sanitizers' run has none

    rng = np.random.default_rng(0)
    x, y, w = (torch.from_numpy(rng.standard_normal((5, 24))) for _ in range(3))
    assert np.allclose(
        ORACLE.rms_norm(x.numpy(), w[0].numpy(), EPS), torch.nn.functional.rms_norm(x, (24,), w[0], EPS), atol=1e-14
    )
    assert np.allclose(ORACLE.silu_and_mul(x.numpy(), y.numpy()), torch.nn.functional.silu(x) * y, atol=1e-14)
    assert np.allclose(ORACLE.linear(x.numpy(), w.numpy()), torch.nn.functional.linear(x, w), atol=1e-13)
    values, order = torch.softmax(x, dim=-1).topk(3)
    for renormalize, theirs in ((False, values), (True, values / values.sum(1, keepdim=True))):
        weights, chosen = ORACLE.topk_softmax(x.numpy(), 3, renormalize)
        assert np.array_equal(chosen, order) and np.allclose(weights, theirs, atol=1e-14)
    biased = torch.nn.functional.linear(x, w, y[0, :5])
    assert np.allclose(ORACLE.linear(x.numpy(), w.numpy(), y[0, :5].numpy()), biased, atol=1e-13)
    batch = paged_batch(rng, [20], [20], 4, 7)
    q, k, v = (rng.standard_normal((20, heads, 8)) for heads in (6, 2, 2))
    kv = ORACLE.new_kv_cache((1, 2, 7, 2, 4, 8))[0]
    ORACLE.store_kv(k, v, kv, batch.slot_mapping)
    ours = ORACLE.paged_attention(q, kv, batch, 8**-0.5)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(a).transpose(0, 1) for a in (q, k, v)), is_causal=True, enable_gqa=True
    )
    assert np.allclose(ours, theirs.transpose(0, 1), atol=1e-14)


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_topk_softmax_matches_the_oracle(backend: Backend, shape: tuple[int, int], renormalize: bool) -> None:
    rows, experts = shape
    x = normal(np.random.default_rng(experts), rows, experts) * 3
    for k in sorted({1, min(2, experts), min(17, experts)}):
        weights, chosen = backend.topk_softmax(x, k, renormalize)
        want, wanted = ORACLE.topk_softmax(x.astype(float), k, renormalize)
        assert np.array_equal(chosen, wanted) and chosen.dtype == np.int64
        assert relative_error(weights, want) < 3e-6


def test_topk_softmax_at_its_edges(backend: Backend) -> None:
    """Of equals the lower id; a NaN last, never lost, in all weights of its row and of no other; -inf weighs nothing."""
    inf, nan = np.inf, np.nan
    x = np.array(
        [[1, 3, 3, 0, 3], [5, nan, 4, -inf, 2], [nan] * 5, [0, -inf, -inf, -inf, 1], [-200, -100, -300, -101, -400]], "f"
    )
    for renormalize in (False, True):
        weights, chosen = backend.topk_softmax(x, 3, renormalize)
        assert chosen.tolist() == [[1, 2, 4], [0, 2, 4], [0, 1, 2], [4, 0, 1], [1, 3, 0]]
        assert (
            np.isnan(weights).all(axis=1).tolist() == [False, True, True, False, False] and not np.isnan(weights[[0, 3, 4]]).any()
        )
        assert np.allclose(weights[3], [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1)), 0], atol=1e-6)
        assert np.allclose(weights[0], 1 / (3 + (not renormalize) * (np.exp(-2) + np.exp(-3))), atol=1e-6)
    assert backend.topk_softmax(x, 5, True)[1].tolist()[1] == [0, 2, 4, 1, 3]
    for k in (0, 6):
        with pytest.raises(ValueError, match=f"topk_softmax: k is {k}; expected 1 to 5"):
            backend.topk_softmax(x, k, True)
    weights, chosen = backend.topk_softmax(x[:0], 2, True)
    assert weights.shape == chosen.shape == (0, 2)


def test_combine_experts_matches_the_oracle(backend: Backend) -> None:
    rng = np.random.default_rng(6)
    y, weights, out, gate = normal(rng, 15, 24), normal(rng, 5, 3), normal(rng, 5, 24), normal(rng, 5, 1) * 40
    rows, parts = ids(rng.permutation(15).reshape(5, 3)), [y[:4], y[4:5], y[5:]]
    wide = [part.astype(float) for part in parts], rows, weights.astype(float)
    routed, shared = ORACLE.combine_experts(*wide), (out.astype(float), gate.astype(float))
    assert relative_error(backend.combine_experts(parts, rows, weights), routed) < 3e-6
    assert (
        relative_error(backend.combine_experts(parts, rows, weights, (out, gate)), ORACLE.combine_experts(*wide, shared)) < 3e-6
    )
    assert np.allclose(routed, np.einsum("tk,tkh->th", wide[2], y[rows].astype(float)), atol=1e-14)
    assert np.allclose(ORACLE.combine_experts(*wide, shared), routed + shared[0] / (1 + np.exp(-shared[1])), atol=1e-14)


def test_extreme_values(backend: Backend) -> None:
    """exp at its edges: a silu of -1e4 is 0, of 1e4 is itself; a NaN stays a NaN; a row of zeros normalises to zeros."""
    x = np.array([[-np.inf, -3e38, -1e36, -1e4, -100, -88, 0, 88, 1e4, np.nan]], np.float32)
    out = backend.silu_and_mul(x, np.ones_like(x))
    assert np.allclose(out[0, :9], [0, 0, 0, 0, 0, 0, 0, 88, 1e4], atol=1e-6)
    assert np.isnan(out[0, 9])
    assert np.array_equal(backend.rms_norm(np.zeros((2, 9), np.float32), np.ones(9, np.float32), EPS), np.zeros((2, 9)))


def test_a_bias_of_another_shape_is_refused(backend: Backend) -> None:
    weight = backend.prepare({"w": np.ones((4, 8), np.float32)})["w"]
    with pytest.raises(ValueError, match="bias"):
        backend.linear(np.zeros((2, 8), np.float32), weight, np.zeros(1, np.float32))


def test_no_tokens_is_legal(backend: Backend) -> None:
    weight = backend.prepare({"w": np.ones((4, 8), np.float32)})["w"]
    assert backend.linear(np.zeros((0, 8), np.float32), weight).shape == (0, 4)
    assert backend.rms_norm(np.zeros((0, 8), np.float32), np.ones(8, np.float32), EPS).shape == (0, 8)
    assert backend.embedding(ids([]), weight).shape == (0, 8)
