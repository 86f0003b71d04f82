"""What a forward pass calls, operator by operator: the decoder runs over a backend that passes every call on and writes it down.

>>> records = record_operators(load_model("lab"), [1, 2, 3])
>>> [record.name for record in records[:4]]
['embedding', 'input norm', 'q', 'k']
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from labcore.core.config import CacheConfig
from labcore.core.errors import InvalidRequest
from labcore.core.operators import OperatorRecord, Shape, size
from labcore.kernels.api import Array, ForwardBatch, GatedWeights, Weight
from labcore.model.llama import LlamaModel

Facts = dict[str, Any]  # fields of an OperatorRecord
ROWS = ("tokens", "hidden")
AXES = {  # of each matrix: (outputs, inputs)
    "q": ("heads x head dim", "hidden"),
    "k": ("kv heads x head dim", "hidden"),
    "v": ("kv heads x head dim", "hidden"),
    "o": ("hidden", "heads x head dim"),
    "gate": ("intermediate", "hidden"),
    "up": ("intermediate", "hidden"),
    "down": ("hidden", "intermediate"),
    "head": ("vocabulary", "hidden"),
}


def record_operators(model: LlamaModel, token_ids: Sequence[int], position: int = 0) -> tuple[OperatorRecord, ...]:
    """Run these tokens once, in one sequence, and return every operator that was called, in order.

    Bytes of weights are those that the backend holds, so they differ between backends where weights are packed.
    position: of the first of them; what lies before it is taken as computed (a pool of zeros: shapes do not depend on it).
    The model is left as it was. Raises InvalidRequest.
    """
    n, end = len(token_ids), position + len(token_ids)
    if model.config.moe:
        raise InvalidRequest(f"{model.config.name} has experts, whose operators are not recorded; expected a dense model")
    if not n or not position >= 0 or end > model.config.max_model_len:
        limit = model.config.max_model_len
        raise InvalidRequest(f"{n} tokens from position {position} on; expected one or more within a context of {limit}")
    batch = replace(ForwardBatch.of_one_sequence(token_ids, position), logits_indices=np.array([n - 1]))
    recorder = _Recorder(model)
    tapped = copy.copy(model)
    tapped.backend = recorder
    tapped.forward_by_operators(batch, model.new_kv_cache(CacheConfig.one_block(end)))
    return tuple(recorder.records)


class _Recorder:
    """`api.Backend` over another one: a call goes through, and the method `_<operator>` here says what it was."""

    def __init__(self, model: LlamaModel) -> None:
        self._inner = model.backend
        self.records: list[OperatorRecord] = []
        self._layer: int | None = None  # of the last weight: operators without one belong to the same layer
        self._roles: dict[int, tuple[str, int | None]] = {id(model.weights.final_norm): ("add + final norm", None)}
        for i, layer in enumerate(model.weights.layers):
            weights = {"add + input norm" if i else "input norm": layer.input_norm, "add + norm": layer.post_norm}
            weights |= {"q norm": layer.q_norm, "k norm": layer.k_norm}
            weights |= {name: getattr(layer, name)[0] for name in "qkvo"}
            weights |= {name: getattr(layer.mlp, name)[0] for name in GatedWeights._fields}
            self._roles |= {id(weight): (name, i) for name, weight in weights.items()}

    def __getattr__(self, operator: str) -> Any:
        call, describe = getattr(self._inner, operator), getattr(type(self), f"_{operator}", None)
        if describe is None:
            return call

        def recorded(*arguments: Any) -> Any:
            out = call(*arguments)
            facts = describe(self, out, *arguments)
            self.records.append(OperatorRecord(operator=operator, layer=self._layer, **facts))
            return out

        return recorded

    def _role(self, weight: Weight) -> str:
        name, self._layer = self._roles.get(id(weight), ("head", None))  # tied to the embedding, or a matrix of its own
        return name

    def _embedding(self, out: Array, token_ids: np.ndarray, weight: Weight) -> Facts:
        read = _nbytes(weight) // weight.shape[0] * len(token_ids)  # a row for each token
        table = _shape(weight, "vocabulary", "hidden")
        return _facts("embedding", [_shape(token_ids, "tokens")], [_shape(out, *ROWS)], table, read)

    def _rms_norm(self, out: Array, x: Array, weight: Weight, eps: float) -> Facts:
        name = self._role(weight)
        heads = {"q norm": ("tokens x heads", "head dim"), "k norm": ("tokens x kv heads", "head dim")}
        shape = _shape(x, *heads.get(name, ROWS))
        return _facts(name, [shape], [shape], (shape[1],), _nbytes(weight), flops=4 * size(shape))

    def _add_rms_norm(self, out: Array, x: Array, residual: Array, weight: Weight, eps: float) -> Facts:
        shape = _shape(x, *ROWS)
        both = [shape, shape]
        return _facts(self._role(weight), both, both, (shape[1],), _nbytes(weight), flops=5 * size(shape))

    def _linear(self, out: Array, x: Array, weight: Weight, bias: Weight | None = None) -> Facts:
        name = self._role(weight)
        outputs, inputs = AXES[name]
        shape, made = _shape(weight, outputs, inputs), _shape(out, "tokens", outputs)
        flops, read = 2 * len(x) * size(shape), _nbytes(weight)
        if bias is not None:
            flops, read = flops + size(made), read + _nbytes(bias)
        return _facts(name, [_shape(x, "tokens", inputs)], [made], shape, read, flops=flops)

    def _rope(self, out: Array, x: Array, positions: np.ndarray, cos: Weight, sin: Weight) -> Facts:
        name, heads = ("rope k", "kv heads") if self.records[-1].name == "rope q" else ("rope q", "heads")
        shape = _shape(x, "tokens", heads, "head dim")
        read = (_nbytes(cos) + _nbytes(sin)) // len(cos) * len(positions)  # a row of each table for each token
        return _facts(name, [shape], [shape], _shape(cos, "positions", "head dim / 2"), read, flops=3 * size(shape))

    def _store_kv(self, out: None, k: Array, v: Array, kv: Array, slot_mapping: np.ndarray) -> Facts:
        shape = _shape(k, "tokens", "kv heads", "head dim")
        written: Shape = (("k and v", 2), *shape)
        return _facts("store", [shape, shape], [written], kv_bytes=size(written) * _itemsize(kv))

    def _paged_attention(self, out: Array, q: Array, kv: Array, batch: ForwardBatch, scale: float) -> Facts:
        shape, context = _shape(q, "tokens", "heads", "head dim"), int(batch.context_lens.sum())
        seen = (("k and v", 2), ("context", context), ("kv heads", kv.shape[2]), ("head dim", kv.shape[4]))
        # a query at position p meets p + 1 keys: a product and a weighted sum, 2 x head dim each
        flops = 4 * shape[1][1] * shape[2][1] * int((batch.positions + 1).sum())
        return _facts("attention", [shape, seen], [shape], kv_bytes=size(seen) * _itemsize(kv), flops=flops)

    def _silu_and_mul(self, out: Array, gate: Array, up: Array) -> Facts:
        shape = _shape(gate, "tokens", "intermediate")
        return _facts("silu x up", [shape, shape], [shape], flops=5 * size(shape))

    def _take_rows(self, out: Array, x: Array, rows: np.ndarray) -> Facts:
        self._layer = None
        name = "last row of the residual" if self.records[-1].operator == "take_rows" else "last row"
        return _facts(name, [_shape(x, *ROWS)], [_shape(out, *ROWS)])


def _facts(
    name: str, inputs: list[Shape], outputs: list[Shape], weight: Shape = (), weight_bytes: int = 0, **costs: int
) -> Facts:
    return {
        "name": name,
        "inputs": tuple(inputs),
        "outputs": tuple(outputs),
        "weight": weight,
        "weight_bytes": weight_bytes,
        **costs,
    }


def _shape(array: Any, *axes: str) -> Shape:
    return tuple(zip(axes, map(int, array.shape), strict=True))


def _nbytes(array: Any) -> int:
    return int(array.nbytes)


def _itemsize(array: Any) -> int:
    return _nbytes(array) // prod(array.shape)
