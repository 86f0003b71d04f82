"""Checks on the decoder: the engine's operators say what is right.

>>> check_attend_one(lambda q, keys, values: None)
not answered yet: your function returned None for 4 heads, 4 KV heads and 5 tokens
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from labcore.core.config import ModelConfig
from labcore.kernels.api import ForwardBatch
from labcore.kernels.reference import ReferenceBackend
from labcore.lab.equivalence import all_logits
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike
from labcore.loaders.checkpoint import Checkpoint
from labcore.loaders.lab import lab_checkpoint
from labcore.model.weights import load_model

TOLERANCE = 1e-9  # of float64 arrays, relative to the largest number: sums may be taken in any order
SIZES = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
FAULTS = ("nothing", "norm", "positions", "heads", "mask")

Suspect = Callable[[list[int]], np.ndarray]  # token ids -> logits (tokens, vocab_size)


def check_parameters(answer: Answer) -> Verdict:
    """answer(hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size): weights, head tied."""
    cases = [
        (576, 1536, 30, 9, 3, 64, 49152), (256, 768, 4, 8, 2, 32, 1024), (64, 128, 1, 4, 4, 16, 100),
        (64, 128, 2, 4, 1, 32, 100), (32, 96, 3, 2, 1, 16, 7),
    ]  # fmt: skip
    wrong = unlike(_parameters, "the engine counted", "weights", _miscount)
    return judge(answer, named(", ".join(SIZES), *cases), wrong, "the engine")


def _parameters(*sizes: int) -> int:
    shape: dict[str, Any] = dict(zip(SIZES, sizes, strict=True))
    return ModelConfig(name="exercise", max_model_len=1, rope_theta=1e4, rms_norm_eps=1e-5, **shape).num_parameters


def _miscount(got: object, *sizes: int) -> str:
    """The common slip that gives just this count, as the end of a sentence; nothing where it is another."""
    if isinstance(got, float):
        return "; expected a whole number"
    if not isinstance(got, int):
        return ""
    shape = dict(zip(SIZES, sizes, strict=True))
    hidden, layers, q_size = shape["hidden_size"], shape["num_layers"], shape["num_heads"] * shape["head_dim"]
    slips = {
        shape["vocab_size"] * hidden: "vocab_size * hidden_size too many, as if the head were not tied",
        -(2 * layers + 1) * hidden: "as if there were no norms",
        -2 * layers * hidden: "as if the layers had no norms",
        -layers * hidden: "as if a layer had one norm",
        -hidden: "as if there were no norm after the layers",
        2 * layers * hidden * (hidden - q_size): "as if num_heads * head_dim were hidden_size",
    }
    slip = slips.get(got - _parameters(*sizes))
    return f": {slip}" if slip else ""


def check_attend_one(answer: Answer) -> Verdict:
    """answer(q, keys, values): attention of one new token over all that is remembered, its own key and value last.

    q (heads, head_dim); keys, values (tokens, kv_heads, head_dim); the result (heads, head_dim).
    """
    cases = {}
    shapes = [(4, 4, 8, 5), (4, 2, 8, 5), (9, 3, 64, 17), (8, 1, 4, 1), (6, 2, 16, 300)]
    for seed, (heads, kv_heads, head_dim, tokens) in enumerate(shapes):
        random = np.random.default_rng(seed)
        q, kv = random.standard_normal((heads, head_dim)), random.standard_normal((2, tokens, kv_heads, head_dim))
        cases[f"{heads} heads, {kv_heads} KV heads and {tokens} tokens"] = (q, *kv)
    return judge(answer, cases, _attention_fault, "the engine's attention")


def _attention_fault(got: object, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> str:
    wrong = _difference(got, _attend_one(q, keys, values))
    return wrong and wrong + _slip(got, q, keys, values)


def _slip(got: object, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> str:
    """The common slip that gives just this answer, as the end of a sentence; nothing where it is another."""
    (heads, head_dim), kv_heads = q.shape, keys.shape[1]
    tiles = (1, heads // kv_heads, 1)
    slips = {
        f"as if head h read KV head h % {kv_heads}": _attend_one(q, np.tile(keys, tiles), np.tile(values, tiles)),
        "as if the scores were not divided by the root of head_dim": _attend_one(q * head_dim**0.5, keys, values),
        "as if the softmax ran over the heads": _attend_over(0, q, keys, values),
        "as if the softmax ran over all heads and tokens at once": _attend_over(None, q, keys, values),
    }
    if len(keys) > 1:
        slips["as if the newest token were left out"] = _attend_one(q, keys[:-1], values[:-1])
    return next((f", {slip}" for slip, made in slips.items() if not _difference(got, made)), "")


def _attend_over(axis: int | None, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention with a softmax over this axis of the scores (heads, tokens), or over both."""
    keys, values = (np.repeat(x, len(q) // x.shape[1], axis=1) for x in (keys, values))
    weights = np.exp(np.einsum("hd,shd->hs", q, keys) / q.shape[1] ** 0.5)
    return np.einsum("hs,shd->hd", weights / weights.sum(axis=axis, keepdims=True), values)


def _attend_one(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The engine's operator on a pool of one block, the query at the last position."""
    tokens, kv_heads, head_dim = keys.shape
    batch = ForwardBatch.of_one_sequence([0], tokens - 1)
    ops = ReferenceBackend(np.float64)
    kv = ops.new_kv_cache((1, 2, 1, kv_heads, tokens, head_dim))[0]
    ops.store_kv(keys, values, kv, np.arange(tokens))
    return ops.paged_attention(q[None], kv, batch, head_dim**-0.5)[0]


def _difference(got: object, expected: np.ndarray) -> str:
    """What is wrong with an array, as the end of a sentence; nothing where it is right."""
    try:
        array = np.asarray(got, np.float64)
    except (TypeError, ValueError):
        return f"your function returned {type(got).__name__}; expected an array of shape {expected.shape}"
    if array.shape != expected.shape:
        return f"your function returned shape {array.shape}; expected {expected.shape}"
    largest = np.abs(array - expected).max()
    if largest <= TOLERANCE * np.abs(expected).max():  # a NaN is no small difference
        return ""
    return f"the largest difference from the engine is {largest:.2g}"


def check_diagnosis(answer: Callable[[Suspect, Suspect], object]) -> Verdict:
    """answer(suspect, right): which piece of a suspect decoder is wrong, one of FAULTS.

    Both are functions: token ids of the lab model in, logits (tokens, vocab_size) out, in float64.
    """
    truth: dict[Suspect, tuple[str, str]] = {}
    cases: dict[str, tuple[Suspect, Suspect]] = {}
    for seed, (fault, what, backend) in enumerate(_SUSPECTS, start=1):
        checkpoint = lab_checkpoint(seed)
        suspect, right = _logits(checkpoint, backend), _logits(checkpoint, ReferenceBackend)
        cases[f"suspect {seed}"] = suspect, right
        truth[suspect] = fault, what

    def wrong(got: object, suspect: Suspect, right: Suspect) -> str:
        if not isinstance(got, str) or got not in FAULTS:
            return f"your function says {got!r}; expected one of {', '.join(FAULTS)}"
        fault, what = truth[suspect]
        return "" if got == fault else f"your function says {got!r}; expected {fault!r}: it is a decoder {what}"

    return judge(answer, cases, wrong, "what was done to the decoders")


def _logits(checkpoint: Checkpoint, backend: type[ReferenceBackend]) -> Suspect:
    model = load_model(checkpoint, backend=backend(np.float64))
    return lambda ids: all_logits(model, list(ids))


class _Doubled(ReferenceBackend):
    def rope(self, x: np.ndarray, positions: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        return super().rope(x, 2 * positions, cos, sin)


class _Shifted(ReferenceBackend):
    def rope(self, x: np.ndarray, positions: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        return super().rope(x, positions + 100, cos, sin)


class _Neighbours(ReferenceBackend):
    def rope(self, x: np.ndarray, positions: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        order = np.r_[0 : x.shape[-1] : 2, 1 : x.shape[-1] : 2]
        return super().rope(x[..., order], positions, cos, sin)[..., np.argsort(order)]


class _Unmasked(ReferenceBackend):
    def paged_attention(self, q: np.ndarray, kv: np.ndarray, batch: ForwardBatch, scale: float) -> np.ndarray:
        last = np.repeat(batch.context_lens - 1, np.diff(batch.query_start))
        return super().paged_attention(q, kv, replace(batch, positions=last), scale)


class _ByRemainder(ReferenceBackend):
    def paged_attention(self, q: np.ndarray, kv: np.ndarray, batch: ForwardBatch, scale: float) -> np.ndarray:
        order = np.argsort(np.arange(q.shape[1]) % kv.shape[2], kind="stable")
        return super().paged_attention(q[:, order], kv, batch, scale)[:, np.argsort(order)]


class _EpsOutside(ReferenceBackend):
    def rms_norm(self, x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
        return x / (np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) + eps) * weight


_SUSPECTS: list[tuple[str, str, type[ReferenceBackend]]] = [
    ("positions", "that doubles positions", _Doubled),
    ("nothing", "that is right", ReferenceBackend),
    ("mask", "that sees later tokens", _Unmasked),
    ("heads", "whose head h reads KV head h % 2", _ByRemainder),
    ("norm", "that adds eps outside the root", _EpsOutside),
    ("positions", "that turns neighbours in the place of halves", _Neighbours),
    ("nothing", "that counts all positions from 100, which changes no score", _Shifted),
]
