"""llama.cpp through llama-cpp-python's low-level calls: one batch a step, any number of sequences, greedy by argmax.

Its KV cache is float16, its default. The batch calls are those of llama.cpp's own batched benchmark; argmax in numpy is faster
than its sampler.
"""

from __future__ import annotations

import time

import llama_cpp as api
import numpy as np

from labcore.bench.stamp import installed
from labcore.bench.workload import Workload
from labcore.core.errors import LabError

CONTEXT, SEQUENCES, CHUNK = 8192, 32, 512


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        self._quiet = api.llama_log_callback(lambda level, text, data: None)  # kept: C holds a pointer to it
        api.llama_log_set(self._quiet, None)
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
        if not self._model:
            raise LabError(f"llama.cpp cannot read {model}")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = CONTEXT, 1024, CHUNK, SEQUENCES
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        self._context = api.llama_init_from_model(self._model, params)
        self._batch = api.llama_batch_init(1024, 0, 1)
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self.versions = {"llama-cpp-python": installed("llama-cpp-python") or "?", "KV": "float16"}

    def run(self, workload: Workload, prompts: list[list[int]]) -> float:
        self._forget()
        begun = time.perf_counter()
        rows = [(token, p, s, p == len(ids) - 1) for s, ids in enumerate(prompts) for p, token in enumerate(ids)]
        newest = self._decode(rows).argmax(axis=-1)
        if workload.prefills:
            return time.perf_counter() - begun
        begun = time.perf_counter()
        for position in range(workload.prompt_tokens, workload.prompt_tokens + workload.new_tokens - 1):
            newest = self._decode([(int(token), position, s, True) for s, token in enumerate(newest)]).argmax(axis=-1)
        return (time.perf_counter() - begun) / (workload.new_tokens - 1)

    def logits(self, token_ids: list[int]) -> np.ndarray:
        self._forget()
        rows = [(token, p, 0, True) for p, token in enumerate(token_ids)]
        return np.concatenate([self._decode(rows[at : at + CHUNK]) for at in range(0, len(rows), CHUNK)])

    def _forget(self) -> None:
        api.llama_memory_clear(api.llama_get_memory(self._context), True)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> np.ndarray:
        """rows: (token, position, sequence, whether its logits are wanted) -> those logits (wanted, vocabulary)."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if code := api.llama_decode(self._context, batch):
            raise LabError(f"llama_decode returned {code}")
        wanted_rows = [i for i, row in enumerate(rows) if row[3]]
        pointers = [api.llama_get_logits_ith(self._context, i) for i in wanted_rows]
        return np.array([np.ctypeslib.as_array(pointer, (self.vocab_size,)) for pointer in pointers])
