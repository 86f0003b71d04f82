"""Our engine under a workload: scheduling, model, sampling, all that a user waits for.

>>> runner = EngineRunner(load_model("lab"))
>>> runner.run(PREFILL, PREFILL.prompts(1024, seed=0))       # seconds       # doctest: +SKIP
0.012
"""

from __future__ import annotations

import time

from labcore.bench.workload import Workload
from labcore.core.config import CacheConfig, EngineConfig, SchedulerConfig
from labcore.core.errors import LabError
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.sampling_params import SamplingParams
from labcore.model.llama import LlamaModel

LIMITS = SchedulerConfig(max_num_batched_tokens=1024, max_num_seqs=32)
POOL = CacheConfig(num_blocks=512)


class EngineRunner:
    """A model behind an engine that serves workloads of up to 32 requests."""

    def __init__(self, model: LlamaModel) -> None:
        self.engine = LLMEngine(model, EngineConfig(cache=POOL, scheduler=LIMITS))
        self.engine.runner.kv[:] = 0  # the system's pages are taken now, as other engines do when they clear their caches
        self._count = 0

    def run(self, workload: Workload, prompts: list[list[int]]) -> float:
        """Seconds of the prefill, or of a decode step (the mean of all), greedy."""
        params = SamplingParams(max_tokens=workload.new_tokens, temperature=0.0, ignore_eos=True)
        begun = time.perf_counter()
        for prompt in prompts:
            self._count += 1
            self.engine.add_request(f"bench-{self._count}", prompt, params)
        started = 0
        while started < len(prompts):  # a decode counts from when all are in their answers
            started += len(self._step())
        if workload.prefills:
            return time.perf_counter() - begun
        begun, steps = time.perf_counter(), 0
        while self.engine.has_unfinished:
            self._step()
            steps += 1
        if steps != workload.new_tokens - 1:
            raise LabError(
                f"{workload.name} took {steps} decode steps; expected {workload.new_tokens - 1}: the pool is too small"
            )
        return (time.perf_counter() - begun) / steps

    def _step(self) -> list[int]:
        outputs = self.engine.step()
        if bad := [out.error for out in outputs if out.error]:
            raise LabError(f"a request ended with an error: {bad[0]}")
        return [len(out.token_ids) for out in outputs]
