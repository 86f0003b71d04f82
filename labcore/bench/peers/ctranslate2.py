"""CTranslate2 in int8, converted from a Hugging Face folder. It tells no steps apart: a decode is a run less its prefill."""

from __future__ import annotations

import tempfile
import time

import ctranslate2
import transformers

from labcore.bench.workload import Workload


class Engine:
    def __init__(self, model: str, threads: int) -> None:
        self._pieces = transformers.AutoTokenizer.from_pretrained(model)
        self.vocab_size = len(self._pieces)
        with tempfile.TemporaryDirectory() as folder:
            converted = f"{folder}/ct2"
            ctranslate2.converters.TransformersConverter(model).convert(converted, quantization="int8")
            self._generator = ctranslate2.Generator(
                converted, device="cpu", inter_threads=1, intra_threads=threads, compute_type="int8"
            )
        self.versions = {"ctranslate2": ctranslate2.__version__, "compute type": "int8"}

    def run(self, workload: Workload, prompts: list[list[int]]) -> float:
        prefill = self._generate(prompts, 1)
        if workload.prefills:
            return prefill
        return (self._generate(prompts, workload.new_tokens) - prefill) / (workload.new_tokens - 1)

    def _generate(self, prompts: list[list[int]], new_tokens: int) -> float:
        pieces = [self._pieces.convert_ids_to_tokens(ids) for ids in prompts]
        begun = time.perf_counter()
        self._generator.generate_batch(
            pieces, max_length=new_tokens, min_length=new_tokens, sampling_topk=1, include_prompt_in_result=False, end_token=[]
        )
        return time.perf_counter() - begun
