"""Hugging Face transformers: a plain LlamaForCausalLM in float32, its own KV cache, a loop of forward calls."""

from __future__ import annotations

import time

import torch
import transformers

from labcore.bench.workload import Workload


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = transformers.LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.vocab_size = int(self._model.config.vocab_size)
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__, "dtype": "float32"}

    def run(self, workload: Workload, prompts: list[list[int]]) -> float:
        with torch.inference_mode():
            begun = time.perf_counter()
            out = self._model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            newest = out.logits[:, -1].argmax(-1, keepdim=True)
            if workload.prefills:
                return time.perf_counter() - begun
            begun = time.perf_counter()
            for _ in range(workload.new_tokens - 1):
                out = self._model(newest, past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)
                newest = out.logits[:, -1].argmax(-1, keepdim=True)
            return (time.perf_counter() - begun) / (workload.new_tokens - 1)
