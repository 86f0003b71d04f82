"""The process a peer lives in: loads one engine, then answers one request a line, and sleeps in between.

    $ python -m labcore.bench.peers.worker labcore.bench.peers.llama_cpp MODEL THREADS

An answer is a line of JSON: first {"versions": ..., "loaded": seconds}, then for each request its result, or {"error": ...}.
Requests: {"workload": [batch, prompt tokens, new tokens], "seed": n} -> {"seconds": s}; {"logits": ids, "file": path} -> {}.
What libraries print goes to stderr: stdout belongs to the answers.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, Protocol

import numpy as np

from labcore.bench.timing import stopwatch
from labcore.bench.workload import Workload


class Engine(Protocol):
    """What a peer's module has under the name `Engine`. Made from (model, threads); raises whatever it likes."""

    vocab_size: int
    versions: dict[str, str]  # of its packages, and what kind of numbers it computes with

    def run(self, workload: Workload, prompts: list[list[int]]) -> float:
        """Seconds of the prefill, or of a decode step (the mean of all), greedy."""
        ...


def answer(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    if "logits" in request:
        np.save(request["file"], engine.logits(request["logits"]))
        return {}
    batch, prompt_tokens, new_tokens = request["workload"]
    workload = Workload(batch=batch, prompt_tokens=prompt_tokens, new_tokens=new_tokens)
    return {"seconds": engine.run(workload, workload.prompts(engine.vocab_size, request["seed"]))}


def main(module: str, model: str, threads: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(document: dict[str, Any]) -> None:
        print(json.dumps(document), file=answers, flush=True)

    try:
        with stopwatch() as watch:
            engine: Engine = importlib.import_module(module).Engine(model, int(threads))
    except Exception as error:  # a package that is missing, a file that it does not read: the parent lists the reason
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"versions": engine.versions, "loaded": watch.seconds})
    for line in sys.stdin:
        try:
            said = answer(engine, json.loads(line))
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        say(said)


if __name__ == "__main__":
    main(*sys.argv[1:4])
