"""llama.cpp through llama-cpp-python's low-level calls: one batch a step, any number of sequences, greedy by argmax.

Its KV cache is float16, its default. The batch calls are those of llama.cpp's own batched benchmark; argmax in numpy is faster
than its sampler. A model path that ends in `#q4_0` is first written anew in that format, the fastest of llama.cpp's own on a CPU.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from pathlib import Path

import llama_cpp as api
import numpy as np

from labcore.bench.peers.process import Q4_0
from labcore.bench.stamp import installed
from labcore.bench.workload import Workload
from labcore.core.errors import LabError

CONTEXT, SEQUENCES, CHUNK = 8192, 32, 512


def requantized(model: str, folder: str) -> str:
    """The model in Q4_0, written by llama.cpp itself into this folder. Raises LabError where it refuses."""
    params = api.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = api.LLAMA_FTYPE_MOSTLY_Q4_0, True
    path = str(Path(folder) / "q4_0.gguf")
    if code := api.llama_model_quantize(model.encode(), path.encode(), ctypes.byref(params)):
        raise LabError(f"llama_model_quantize returned {code} for {model}")
    return path


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        self._quiet = api.llama_log_callback(lambda level, text, data: None)  # kept: C holds a pointer to it
        api.llama_log_set(self._quiet, None)
        api.llama_backend_init()
        with tempfile.TemporaryDirectory(prefix="labcore-q4_0-") as folder:
            path = requantized(model.removesuffix(Q4_0), folder) if model.endswith(Q4_0) else model
            params = api.llama_model_default_params()
            params.use_mmap = path == model  # what was written here is gone after this
            self._model = api.llama_model_load_from_file(path.encode(), params)
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
