"""This engine as a contender: the whole of it, as a user calls it. MODEL may end in "#f32": weights expanded to float32."""

from __future__ import annotations

from labcore.bench.engine import EngineRunner
from labcore.bench.peers.process import F32
from labcore.bench.stamp import stamp
from labcore.bench.workload import Workload
from labcore.kernels.registry import get_backend
from labcore.model.weights import load_model


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        weights = "f32" if model.endswith(F32) else "packed"
        loaded = load_model(model.removesuffix(F32), weights=weights, backend=get_backend(threads=threads))
        self.vocab_size = loaded.config.vocab_size
        self.versions = {"labcore": stamp()["versions"]["labcore"], "backend": stamp()["backend"], "weights": weights}
        self._runner = EngineRunner(loaded)

    def run(self, workload: Workload, prompts: list[list[int]]) -> float:
        return self._runner.run(workload, prompts)
