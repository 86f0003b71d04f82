"""A peer that computes nothing and takes the seconds that its model's name says; what it prints must not disturb anybody."""

from __future__ import annotations

import os
import time

import numpy as np

from labcore.bench.workload import Workload


class Engine:
    vocab_size = 1024

    def __init__(self, model: str, threads: int) -> None:
        print("a library says hello on stdout")
        os.write(1, b"and so does one written in C\n")
        self.versions = {"stand-in": "1.0"}
        self._seconds = float(model.removesuffix(".gguf").rpartition("-")[2])
        if "broken" in model:
            raise RuntimeError("no such model\nsecond line")

    def run(self, workload: Workload, prompts: list[list[int]]) -> float:
        if workload.batch == 8 and self._seconds == 4.0:
            raise ValueError("eight are too many for me")
        if workload.batch == 32 and self._seconds == 2.0:
            os._exit(3)
        return self._seconds / (1 if workload.prefills else 10)

    def logits(self, token_ids: list[int]) -> np.ndarray:
        time.sleep(0)
        return np.eye(4, dtype=np.float32)[np.array(token_ids) % 4]
