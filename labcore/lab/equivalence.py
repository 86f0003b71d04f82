"""Run requests through an engine and keep every row of logits, to compare two ways of running the same requests.

>>> model = load_model("lab")
>>> requests = {"a": ("hello", SamplingParams(max_tokens=4)), "b": ("good morning", SamplingParams(max_tokens=4))}
>>> largest_difference(run(model, requests), run_alone(model, requests))
0.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from labcore.core.config import CacheConfig, EngineConfig
from labcore.core.trace import StepRecord
from labcore.engine.llm_engine import LLMEngine, RequestOutput
from labcore.engine.sampling_params import SamplingParams
from labcore.engine.sequence import answer_name
from labcore.kernels.api import ForwardBatch
from labcore.model.llama import LlamaModel

Requests = Mapping[str, tuple[str | list[int], SamplingParams]]


@dataclass(slots=True)
class Run:
    """What an engine did: its tokens and the logits each was chosen from, and the record of each step.

    By request; the second answer to request a, where n > 1, is `a#1`.
    """

    token_ids: dict[str, list[int]] = field(default_factory=dict)
    logits: dict[str, list[np.ndarray]] = field(default_factory=dict)  # rows of (vocab_size,)
    records: list[StepRecord] = field(default_factory=list)

    @property
    def num_tokens_computed(self) -> int:
        return sum(record.num_tokens for record in self.records)

    @property
    def num_preemptions(self) -> int:
        return sum(len(record.preempted) for record in self.records)


def all_logits(model: LlamaModel, token_ids: list[int], kv_dtype: str = "float32") -> np.ndarray:
    """The logits after every one of these tokens, in one pass and without an engine: (len(token_ids), vocab_size)."""
    pool = model.new_kv_cache(CacheConfig.one_block(len(token_ids), kv_dtype))
    return model.forward(ForwardBatch.of_one_sequence(token_ids), pool)


def rows_of(engine: LLMEngine, output: RequestOutput) -> list[np.ndarray]:
    """The logits that each new token of this output was chosen from, (vocab_size,) each; an output of the engine's last step."""
    return [row.copy() for row in engine.runner.rows[output.name][: len(output.token_ids)]] if output.token_ids else []


def run(model: LlamaModel, requests: Requests, config: EngineConfig | None = None) -> Run:
    """Run all requests together; the engine's books are checked after every step, and at the end nobody holds a block."""
    done = Run()
    engine = LLMEngine(model, config, done.records.append)
    for name, (prompt, params) in requests.items():
        engine.add_request(name, prompt, params)
        for index in range(params.n):
            own = answer_name(name, index)
            done.token_ids[own], done.logits[own] = [], []
    while engine.has_unfinished:
        outputs = engine.step()
        engine.check()
        for output in outputs:
            done.token_ids[output.name] += output.token_ids
            done.logits[output.name] += rows_of(engine, output)
    assert engine.cache.num_used == 0, "blocks leaked"
    return done


def run_alone(model: LlamaModel, requests: Requests, config: EngineConfig | None = None) -> Run:
    """Run each request in an engine of its own, one after the other."""
    done = Run()
    for name, request in requests.items():
        one = run(model, {name: request}, config)
        done.token_ids |= one.token_ids
        done.logits |= one.logits
        done.records += one.records
    return done


def largest_difference(a: Run, b: Run) -> float:
    """The largest |a - b| over all logits of all requests; infinite where they do not have the same rows."""
    if any(len(rows) != len(b.logits.get(name, [])) for name, rows in a.logits.items()) or len(a.logits) != len(b.logits):
        return float("inf")
    pairs = ((x, y) for name in a.logits for x, y in zip(a.logits[name], b.logits[name], strict=True))
    return max(float(np.abs(x.astype(np.float64) - y).max()) for x, y in pairs)
