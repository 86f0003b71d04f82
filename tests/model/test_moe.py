"""Experts: logits of checkpoints that `transformers` saved, routing that no batch mate changes, what a model of costs says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hugging_face import VOCAB_SIZE, save_model, their_logits
from support import BACKENDS, ISAS, exact_backends, ids

from labcore.core.config import CacheConfig, ModelConfig, MoEConfig
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.api import ForwardBatch
from labcore.kernels.native import NativeBackend
from labcore.lab.equivalence import all_logits, largest_difference, run, run_alone
from labcore.loaders.checkpoint import Checkpoint, LazyTensors
from labcore.loaders.load import load_checkpoint
from labcore.model.llama import LlamaModel
from labcore.model.moe import gated, group_by_expert
from labcore.model.weights import load_model
from labcore.quant.int8 import quantize_int8

TOKENS = np.random.default_rng(0).integers(0, VOCAB_SIZE, 100).tolist()
TOLERANCE = 1e-4
QWEN: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
CASES: dict[str, dict[str, Any]] = {
    "mixtral": {"kind": "Mixtral", "num_local_experts": 5},
    "mixtral tied bfloat16 shards": {
        "kind": "Mixtral", "tie_word_embeddings": True, "dtype": "bfloat16", "max_shard_size": "100KB", "head_dim": 24
    },
    "mixtral, one of one": {"kind": "Mixtral", "num_local_experts": 1, "num_experts_per_tok": 1},
    "qwen2 shared": {"kind": "Qwen2Moe", "shared_expert_intermediate_size": 48, **QWEN},
    "qwen2 shared renormalised": {
        "kind": "Qwen2Moe", "shared_expert_intermediate_size": 48, "norm_topk_prob": True, "qkv_bias": False, **QWEN
    },
    "qwen3": {"kind": "Qwen3Moe", **QWEN},
    "qwen3 renormalised": {"kind": "Qwen3Moe", "norm_topk_prob": True, "attention_bias": True, **QWEN},
    "qwen3, all of them": {"kind": "Qwen3Moe", **QWEN, "num_experts_per_tok": 6},
}  # fmt: skip
Saved = Callable[[str], tuple[Path, np.ndarray]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The folder of a case, and transformers' logits from it."""

    @cache
    def make(case: str) -> tuple[Path, np.ndarray]:
        folder = save_model(tmp_path_factory.mktemp("model"), **CASES[case])
        return folder, their_logits(folder, TOKENS)

    return make


def row_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest |difference| of a row over its largest value, over all rows."""
    return float((np.abs(ours - theirs).max(axis=1) / np.abs(theirs).max(axis=1)).max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(saved: Saved, case: str, backend: str) -> None:
    folder, theirs = saved(case)
    error = row_error(all_logits(load_model(folder, backend=BACKENDS[backend]()), TOKENS), theirs)
    print(f"{case}, {backend}: largest row error {error:.1e}")
    assert error <= TOLERANCE


def test_what_was_read(saved: Saved) -> None:
    """That each case is what its name says."""
    configs = {case: load_checkpoint(saved(case)[0]).config for case in CASES}
    experts = {case: config.moe for case, config in configs.items() if config.moe}
    assert list(experts) == list(CASES)
    assert experts["mixtral"] == MoEConfig(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=96, norm_topk_prob=True)
    assert experts["qwen2 shared"] == MoEConfig(
        num_experts=6, num_experts_per_tok=3, moe_intermediate_size=40, norm_topk_prob=False, shared_expert_intermediate_size=48
    )
    assert [case for case, moe in experts.items() if moe.norm_topk_prob] == [
        case for case in CASES if "mixtral" in case or "renormalised" in case
    ]
    assert [case for case, moe in experts.items() if moe.shared_expert_intermediate_size] == [c for c in CASES if "shared" in c]
    assert [len(config.biases) for config in configs.values()] == [0, 0, 0, 3, 0, 0, 4, 0]
    assert configs["mixtral"].rope_theta == 1e6 and configs["qwen3"].rope_theta == 1e4 and configs["qwen3"].qk_norm
    for case, config in configs.items():
        checkpoint = load_checkpoint(saved(case)[0])
        counted = sum(int(np.prod(shape)) for name, shape in checkpoint.shapes.items() if name != "lm_head.weight")
        assert config.num_parameters == counted


def with_experts(checkpoint: Checkpoint, **fields: Any) -> Checkpoint:
    assert checkpoint.config.moe
    return replace(checkpoint, config=replace(checkpoint.config, moe=replace(checkpoint.config.moe, **fields)))


def zeroed(checkpoint: Checkpoint, part: str) -> Checkpoint:
    """The tensors whose names have this part become zeros."""
    tensors, shapes = checkpoint.tensors, checkpoint.shapes
    made = LazyTensors(shapes, lambda name: np.zeros(shapes[name], np.float32) if part in name else tensors[name])
    return replace(checkpoint, tensors=made)


LEFT_OUT: dict[str, tuple[str, Callable[[Checkpoint], Checkpoint]]] = {
    "the router": ("mixtral", lambda c: zeroed(c, "mlp.gate.")),
    "one expert": ("mixtral", lambda c: zeroed(c, "experts.3.down_proj")),
    "an expert of several": ("mixtral", lambda c: with_experts(c, num_experts_per_tok=1)),
    "the division by the sum, in Mixtral": ("mixtral", lambda c: with_experts(c, norm_topk_prob=False)),
    "the division by the sum, in Qwen3": ("qwen3 renormalised", lambda c: with_experts(c, norm_topk_prob=False)),
    "that there is no division": ("qwen3", lambda c: with_experts(c, norm_topk_prob=True)),
    "the shared expert": ("qwen2 shared", lambda c: with_experts(c, shared_expert_intermediate_size=0)),
    "the gate of the shared expert": ("qwen2 shared", lambda c: zeroed(c, "shared_expert_gate")),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_an_ingredient_that_is_left_out_is_seen(saved: Saved, what: str) -> None:
    case, leave_out = LEFT_OUT[what]
    folder, theirs = saved(case)
    error = row_error(all_logits(load_model(leave_out(load_checkpoint(folder)), backend="numpy"), TOKENS), theirs)
    print(f"without {what}: {error:.2f}")
    assert error > 0.01


def test_tokens_are_grouped_and_find_their_way_back() -> None:
    rng = np.random.default_rng(2)
    for tokens, experts, k in ((1, 1, 1), (3, 17, 2), (17, 3, 3), (181, 8, 2)):
        chosen = rng.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)[:, :k]
        groups, rows = group_by_expert(chosen)
        assert [expert for expert, _ in groups] == sorted(set(chosen.ravel().tolist()))
        stacked = [(token, expert) for expert, mine in groups for token in mine.tolist()]
        assert [stacked[row] for row in rows.ravel()] == [(t, e) for t in range(tokens) for e in chosen[t].tolist()]
        assert all((np.diff(mine) > 0).all() for _, mine in groups)


def model_of(kind: str, isa: str, threads: int) -> LlamaModel:
    checkpoint = load_checkpoint("lab-moe")
    if kind == "int8":
        tensors = {name: quantize_int8(t) if t.ndim == 2 else t for name, t in checkpoint.tensors.items()}
        checkpoint = replace(checkpoint, tensors=tensors)
    return load_model(checkpoint, backend=NativeBackend(isa=isa, threads=threads))


@pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["f32", "int8"])
def test_a_token_does_not_see_its_batch_mates(kind: str, isa: str) -> None:
    """A prompt at once, token by token, in chunks, on more threads: difference 0.0."""
    tokens = np.random.default_rng(3).integers(0, 1024, 70).tolist()
    truth = all_logits(model_of(kind, isa, 1), tokens)
    for threads, cuts in ((2, range(1, 70)), (3, (1, 2, 9, 40)), (2, (69,))):
        model = model_of(kind, isa, threads)
        kv, rows = model.new_kv_cache(CacheConfig.one_block(70)), []
        for begin, end in zip((0, *cuts), (*cuts, 70), strict=True):
            rows.append(model.forward(ForwardBatch.of_one_sequence(tokens[begin:end], begin), kv))
        assert np.array_equal(np.concatenate(rows), truth)


@pytest.mark.parametrize("name", exact_backends())
def test_scheduling_changes_no_answer(name: str) -> None:
    """Five requests together, in chunks, against each alone: difference 0.0, greedy and sampled."""
    model = load_model("lab-moe", backend=exact_backends()[name])
    requests = {
        text: (text, SamplingParams(max_tokens=6, temperature=t, seed=i, ignore_eos=True))
        for i, (text, t) in enumerate([("a", 0.0), ("the mill", 0.0), ("hello there", 1.0), ("x" * 30, 0.7), ("hello", 0.0)])
    }
    together, alone = run(model, requests), run_alone(model, requests)
    assert largest_difference(together, alone) == 0.0
    assert together.token_ids == alone.token_ids


@pytest.mark.parametrize("name", exact_backends())
def test_shared_experts_do_not_see_mates_either(saved: Saved, name: str) -> None:
    model = load_model(saved("qwen2 shared")[0], backend=exact_backends()[name])
    truth = all_logits(model, TOKENS)
    kv, rows = model.new_kv_cache(CacheConfig.one_block(len(TOKENS))), []
    for begin, end in ((0, 1), (1, 2), (2, 50), (50, 100)):
        rows.append(model.forward(ForwardBatch.of_one_sequence(TOKENS[begin:end], begin), kv))
    assert np.array_equal(np.concatenate(rows), truth)


def test_a_layer_is_what_its_definition_says() -> None:
    """One feed-forward of the lab model, token by token and expert by expert, in float64."""
    model = load_model("lab-moe", backend="reference")
    told: list[tuple[int, np.ndarray, np.ndarray]] = []
    model.router_observer = lambda layer, chosen, weights: told.append((layer, chosen, weights))
    all_logits(model, [1, 2, 3])
    assert [layer for layer, _, _ in told] == [0, 1, 2, 3]
    x, w = np.random.default_rng(0).standard_normal((9, 256)), model.weights.layers[0].mlp
    told.clear()
    got = model._feed_forward(0, model.weights.layers[0], x)
    [(_, chosen, weights)] = told
    assert np.allclose(weights.sum(axis=1), 1)
    for t in range(9):
        logits = w.router @ x[t]
        best = np.argsort(-logits)[:2]
        shares = np.exp(logits[best]) / np.exp(logits[best]).sum()
        assert chosen[t].tolist() == best.tolist() and np.allclose(weights[t], shares)
        made = sum(share * gated(model.backend, w.experts[e], x[t : t + 1])[0] for e, share in zip(best, shares, strict=True))
        assert np.allclose(got[t], made, atol=1e-12)


@pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")
def test_a_step_of_experts_is_made_of_operators() -> None:
    """The native whole-step call is for dense models; the int8 form keeps each expert's matrix in int8."""
    model, dense = load_model("lab-moe", backend="native"), load_model("lab", backend="native")
    assert model.backend.decoder_forward(model.config, model.weights) is None
    assert dense.backend.decoder_forward(dense.config, dense.weights) is not None
    w = model_of("int8", ISAS[0], 1).weights.layers[0].mlp.experts[7].gate[0]
    assert w.shape == (384, 256) and w.nbytes < 384 * 256 * 1.1


def test_the_lab_model_with_experts() -> None:
    checkpoint = load_checkpoint("lab-moe")
    c = ModelConfig.lab()
    assert checkpoint.config.num_parameters == sum(int(np.prod(t.shape)) for t in checkpoint.tensors.values())
    assert checkpoint.config.num_parameters - c.num_parameters == 4 * (3 * 256 * (8 * 384 - 768) + 8 * 256)
    first = checkpoint.tensors["model.layers.0.mlp.experts.0.gate_proj.weight"].ravel()[:3]
    assert np.array_equal(first, load_checkpoint("lab-moe").tensors["model.layers.0.mlp.experts.0.gate_proj.weight"].ravel()[:3])
    assert ids(all_logits(load_model("lab-moe", backend="numpy"), [3, 1, 4])[:, :8].shape).tolist() == [3, 8]
