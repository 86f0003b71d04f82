"""What several test files need: the backends this machine runs, batches laid out by hand, workloads, engines that record."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import on_host

from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.trace import StepRecord
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.api import Backend, ForwardBatch
from labcore.kernels.native import NativeBackend, runnable_isas
from labcore.kernels.reference import ReferenceBackend
from labcore.model.llama import LlamaModel

ISAS = runnable_isas()
BACKENDS = {"numpy": lambda: ReferenceBackend(np.float32), "torch": on_host.torch_backend} | {
    f"native-{isa}": (lambda isa=isa: NativeBackend(isa=isa, threads=2)) for isa in ISAS
}  # fmt: skip
FIRST_RUNGS = {f"native-{isa}-reference": (lambda isa=isa: NativeBackend(isa=isa, threads=2, reference=True)) for isa in ISAS}


def ids(values: object) -> np.ndarray:
    return np.asarray(values, np.int64)


def paged_batch(
    rng: np.random.Generator, queries: list[int], contexts: list[int], block_size: int, num_blocks: int
) -> ForwardBatch:
    """A ragged batch: sequence s asks its last queries[s] positions of contexts[s]; its blocks are scattered over the pool."""
    order = list(rng.permutation(num_blocks))
    tables = [[order.pop() for _ in range(-(-context // block_size))] for context in contexts]
    positions = [p for n, context in zip(queries, contexts, strict=True) for p in range(context - n, context)]
    slot_mapping = [
        table[p // block_size] * block_size + p % block_size
        for table, n, context in zip(tables, queries, contexts, strict=True)
        for p in range(context - n, context)
    ]
    return ForwardBatch(
        token_ids=ids(rng.integers(0, 1000, len(positions))),
        positions=ids(positions),
        query_start=ids(np.cumsum([0, *queries])),
        context_lens=ids(contexts),
        block_tables=ids([b for table in tables for b in table]),
        block_table_start=ids(np.cumsum([0, *map(len, tables)])),
        slot_mapping=ids(slot_mapping),
        logits_indices=ids(np.cumsum(queries) - 1),
    )


@dataclass
class RecordingModel:
    """A model that keeps the bits of every logits row, by request: `rows[request_id]` in the order they were sampled."""

    inner: LlamaModel
    rows: list[bytes] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def forward(self, batch: ForwardBatch, kv: object) -> np.ndarray:
        logits = self.inner.forward(batch, kv)
        self.rows += [row.tobytes() for row in logits]
        return logits


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Answer:
    """All that must be equal: tokens, text, why it ended, and the bits of every logits row."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    logits: tuple[bytes, ...]


def random_requests(
    rng: np.random.Generator, vocab_size: int, most: int = 5, longest: int = 40, max_new: int = 8
) -> list[Request]:
    """A few requests, greedy and seeded; some share a prefix."""
    shared = tuple(map(int, rng.integers(0, vocab_size, longest)))
    requests = []
    for i in range(int(rng.integers(2, most + 1))):
        own = tuple(map(int, rng.integers(0, vocab_size, int(rng.integers(1, longest + 1)))))
        prompt = shared[: int(rng.integers(1, longest))] + own[:4] if rng.random() < 0.3 else own
        temperature = float(rng.choice([0.0, 0.8, 1.5]))
        params = SamplingParams(
            max_tokens=int(rng.integers(1, max_new + 1)), temperature=temperature, top_k=int(rng.choice([0, 5])),
            top_p=float(rng.choice([1.0, 0.9])), seed=100 + i, ignore_eos=bool(rng.random() < 0.5),
        )  # fmt: skip
        requests.append(Request(prompt, params))
    return requests


def run_engine(
    model: LlamaModel,
    requests: list[Request],
    *,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    arrivals: list[int] | None = None,
    max_steps: int = 100_000,
) -> tuple[list[Answer], list[StepRecord]]:
    """Run requests (i joins before step arrivals[i]), checking all books after every step; at the end nothing is held."""
    recorder = RecordingModel(model)
    records: list[StepRecord] = []
    engine = LLMEngine(recorder, EngineConfig(cache=cache, scheduler=scheduler), records.append)  # type: ignore[arg-type]
    arrivals = arrivals or [0] * len(requests)
    waiting = sorted(range(len(requests)), key=lambda i: arrivals[i])
    tokens: dict[str, list[int]] = {str(i): [] for i in waiting}
    texts: dict[str, list[str]] = {str(i): [] for i in waiting}
    logits: dict[str, list[bytes]] = {str(i): [] for i in waiting}
    reasons: dict[str, str] = {}
    for step in range(max_steps):
        while waiting and arrivals[waiting[0]] <= step:
            i = waiting.pop(0)
            engine.add_request(str(i), list(requests[i].prompt), requests[i].params)
        if not waiting and not engine.has_unfinished:
            break
        recorder.rows.clear()
        outputs = engine.step()
        engine.check()
        for row, out in zip(recorder.rows, outputs, strict=True):
            tokens[out.request_id] += out.token_ids
            texts[out.request_id].append(out.text)
            logits[out.request_id].append(row)
            if out.finish_reason:
                reasons[out.request_id] = out.finish_reason
    assert not engine.has_unfinished, f"the engine did not finish within {max_steps} steps"
    assert engine.cache.allocator.num_free == cache.num_blocks, "blocks leaked"
    answers = [Answer(tuple(tokens[k]), "".join(texts[k]), reasons[k], tuple(logits[k])) for k in map(str, range(len(requests)))]
    return answers, records


def alone(model: LlamaModel, request: Request) -> Answer:
    """The request by itself, its prompt in one shot, in a pool that is ample."""
    answers, _ = run_engine(
        model, [request], cache=CacheConfig(block_size=16, num_blocks=64), scheduler=SchedulerConfig(max_num_batched_tokens=1024)
    )
    return answers[0]


def exact_backends() -> dict[str, Backend]:
    return {f"native-{isa}": NativeBackend(isa=isa, threads=1) for isa in ISAS} | {"reference": ReferenceBackend(np.float64)}
