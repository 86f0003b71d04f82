"""The record of a forward pass counts what the checkpoint and the formulas count, on every backend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import BACKENDS

from labcore.core.config import PROJECTIONS, ModelConfig
from labcore.core.errors import InvalidRequest
from labcore.core.operators import OperatorRecord, size
from labcore.lab.operators import record_operators
from labcore.loaders.checkpoint import required_tensors
from labcore.loaders.load import load_checkpoint
from labcore.model.llama import LlamaModel, rope_tables
from labcore.model.weights import load_model

LAYER = [
    "input norm", "q", "k", "v", "rope q", "rope k", "store", "attention", "o", "add + norm", "gate", "up", "silu x up", "down",
]  # fmt: skip


def total(records: tuple[OperatorRecord, ...], field: str, operator: str) -> int:
    return sum(getattr(record, field) for record in records if record.operator == operator)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_and_flops_are_those_of_the_formulas(backend: str) -> None:
    model, tokens = load_model("lab", backend=BACKENDS[backend]()), [5, 6, 7]
    c, records = model.config, record_operators(model, tokens)
    matrices = c.num_layers * sum(outputs * inputs for outputs, inputs in c.projections.values())
    head = c.vocab_size * c.hidden_size
    assert total(records, "flops", "linear") == 2 * (len(tokens) * matrices + head)
    assert total(records, "weight_bytes", "linear") == 4 * (matrices + head)
    norms = total(records, "weight_bytes", "rms_norm") + total(records, "weight_bytes", "add_rms_norm")
    assert norms == 4 * (2 * c.num_layers + 1) * c.hidden_size
    assert total(records, "kv_bytes", "store_kv") == len(tokens) * c.kv_bytes_per_token()
    assert total(records, "kv_bytes", "paged_attention") == len(tokens) * c.kv_bytes_per_token()
    assert total(records, "flops", "paged_attention") == c.num_layers * 4 * c.q_size * (1 + 2 + 3)


def test_packed_weights_count_packed() -> None:
    records, tensors = record_operators(load_model("smollm2"), [1, 2]), load_checkpoint("smollm2").tensors
    matrices = [tensor for name, tensor in tensors.items() if "norm" not in name]  # the head is the embedding
    read = total(records, "weight_bytes", "linear")
    assert read == sum(4 * tensor.shape[0] * tensor.shape[1] for tensor in matrices) or (
        # the native backend spreads the scales of the blocks out
        sum(tensor.nbytes for tensor in matrices) <= read < 1.3 * sum(tensor.nbytes for tensor in matrices)
    )


def test_operators_come_in_the_order_of_the_decoder() -> None:
    model = load_model("lab", backend="reference")
    names = [record.name for record in record_operators(model, [1, 2])]
    later = ["add + input norm", *LAYER[1:]]
    end = ["last row", "last row of the residual", "add + final norm", "head"]
    assert names == ["embedding", *LAYER, *later * (model.config.num_layers - 1), *end]


def test_layers_are_told_and_shapes_fit_together() -> None:
    records = record_operators(load_model("lab", backend="reference"), [1, 2])
    assert [record.layer for record in records].count(None) == 5
    assert [record.layer for record in records if record.name == "store"] == [0, 1, 2, 3]
    flows = {record.name: record for record in records if record.layer == 0}
    assert size(flows["q"].outputs[0]) == size(flows["rope q"].inputs[0]) == size(flows["attention"].inputs[0])
    assert flows["gate"].outputs == flows["up"].outputs == flows["silu x up"].outputs == flows["down"].inputs
    assert flows["rope k"].inputs[0] == (("tokens", 2), ("kv heads", 2), ("head dim", 32))
    assert records[-1].outputs == ((("tokens", 1), ("vocabulary", 1024)),)


def test_a_token_further_back_sees_more_keys() -> None:
    model = load_model("lab", backend="reference")
    [attention] = [r for r in record_operators(model, [1], position=9) if r.name == "attention" and r.layer == 2]
    assert attention.inputs[1] == (("k and v", 2), ("context", 10), ("kv heads", 2), ("head dim", 32))
    assert (attention.flops, attention.kv_bytes) == (4 * 8 * 32 * 10, 2 * 10 * 2 * 32 * 8)


def test_biases_and_norms_of_heads_are_counted() -> None:
    config = replace(ModelConfig.lab(), biases=frozenset(PROJECTIONS), qk_norm=True)
    backend = BACKENDS["numpy"]()
    tensors = {name: np.ones(shape, np.float32) for name, shape in required_tensors(config).items()}
    model = LlamaModel(config, backend, backend.prepare(tensors | rope_tables(config)), load_checkpoint("lab").tokenizer)
    records = {record.name: record for record in record_operators(model, [1, 2]) if record.layer == 0}
    assert records["q norm"].inputs == ((("tokens x heads", 2 * 8), ("head dim", 32)),)
    assert records["k norm"].weight == (("head dim", 32),)
    assert records["gate"].weight_bytes == 4 * (768 * 256 + 768)
    assert records["gate"].flops == 2 * 2 * 768 * 256 + 2 * 768


def test_the_model_is_left_as_it_was() -> None:
    model = load_model("lab")
    backend = model.backend
    assert record_operators(model, [1]) == record_operators(model, [1])
    assert model.backend is backend


@pytest.mark.parametrize(("tokens", "position"), [([], 0), ([1], -1), ([1], 2048), ([1] * 2049, 0)])
def test_what_cannot_run_is_refused(tokens: list[int], position: int) -> None:
    with pytest.raises(InvalidRequest, match=f"{len(tokens)} tokens from position {position} on"):
        record_operators(load_model("lab", backend="reference"), tokens, position)


def test_experts_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="lab-moe has experts, whose operators are not recorded"):
        record_operators(load_model("lab-moe", backend="reference"), [1])
