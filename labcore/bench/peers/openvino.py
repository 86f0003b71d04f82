"""OpenVINO GenAI's continuous batching, on the same GGUF file, with prefix caching off."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import numpy as np
import openvino
import openvino_genai

from labcore.bench.stamp import installed
from labcore.bench.workload import Workload
from labcore.core.errors import LabError
from labcore.loaders.load import load_checkpoint


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        limits = openvino_genai.SchedulerConfig()
        limits.enable_prefix_caching = False
        limits.max_num_batched_tokens, limits.max_num_seqs, limits.cache_size = 1024, 32, 1
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, limits, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self._ids = count()
        self.vocab_size = load_checkpoint(model).config.vocab_size
        self.versions = {"openvino-genai": installed("openvino-genai") or "?", "openvino": installed("openvino") or "?"}

    def run(self, workload: Workload, prompts: list[list[int]]) -> float:
        config, pipeline = _greedy(workload.new_tokens), self._pipeline
        begun = time.perf_counter()
        handles = [pipeline.add_request(next(self._ids), openvino.Tensor(np.array([ids])), config) for ids in prompts]
        pipeline.step()  # all prompts: they fit in the budget of one step
        if workload.prefills:
            seconds, steps = time.perf_counter() - begun, 0
        else:
            begun, steps = time.perf_counter(), 0
            while pipeline.has_non_finished_requests():
                pipeline.step()
                steps += 1
            seconds = (time.perf_counter() - begun) / max(steps, 1)
        lengths = {len(handle.read_all()[0].generated_ids) for handle in handles}
        if (steps, lengths) != (workload.new_tokens - 1, {workload.new_tokens}):
            raise LabError(f"{steps} decode steps gave {lengths} tokens; expected {workload.new_tokens} in one fewer")
        return seconds


def _greedy(new_tokens: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = new_tokens
    config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
    return config
