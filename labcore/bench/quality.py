"""`labcore bench quality`: what packed weights and integer products cost in the distributions that a model gives.

The reference is the model of the same file with its weights expanded to float32. After every token of a text (of this book, its
own words) the distributions for the next token are compared: the mean of KL(reference || other) in nats, and how often the best
token is the same. llama.cpp is asked for the same file and text, where it is installed.

    >>> bench_quality("smollm2")["engines"]["labcore"]["mean_kl"]       # doctest: +SKIP
    0.0021
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from labcore.bench.peers.process import PeerFailed, PeerProcess
from labcore.bench.stamp import stamp
from labcore.core.config import CacheConfig
from labcore.core.errors import InvalidRequest
from labcore.core.machine import num_cores
from labcore.kernels.api import ForwardBatch
from labcore.kernels.registry import get_backend
from labcore.loaders import zoo
from labcore.loaders.load import load_checkpoint
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model
from labcore.quant.error import logit_error

TEXT = Path(__file__).parent / "texts" / "the_mill_and_the_machine.txt"
NUM_TOKENS = 1000


def logits_of(model: LlamaModel, token_ids: list[int]) -> np.ndarray:
    """The logits after every one of these tokens, (tokens, vocabulary)."""
    pool = model.new_kv_cache(CacheConfig.one_block(len(token_ids)))
    return model.forward(ForwardBatch.of_one_sequence(token_ids), pool)


def bench_quality(model: str = "smollm2", *, num_tokens: int = NUM_TOKENS, threads: int | None = None) -> dict[str, Any]:
    """Divergence of our packed weights, and of llama.cpp's, from the float32 model. Raises InvalidRequest: a text too short."""
    checkpoint, backend = load_checkpoint(model), get_backend(threads=threads)
    ids = checkpoint.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:num_tokens]
    if len(ids) < num_tokens:
        raise InvalidRequest(f"the text has {len(ids)} tokens for this model; expected {num_tokens}: ask for fewer")
    reference = logits_of(load_model(checkpoint, weights="f32", backend=backend), ids)
    engines = {"labcore": asdict(logit_error(reference, logits_of(load_model(checkpoint, backend=backend), ids)))}
    absent: dict[str, str] = {}
    try:
        engines["llama.cpp"] = asdict(logit_error(reference, _llama_cpp(model, ids, threads or num_cores())))
    except PeerFailed as error:
        absent["llama.cpp"] = str(error)
    return {
        "stamp": stamp(("llama-cpp-python",)),
        "model": checkpoint.config.name,
        "text": TEXT.name,
        "tokens": len(ids),
        "engines": engines,
        "absent": absent,
        "goals": [],
    }


def _llama_cpp(model: str, ids: list[int], threads: int) -> np.ndarray:
    path = zoo.model_path(model) if model in zoo.FILES else Path(model)
    with PeerProcess("labcore.bench.peers.llama_cpp", path, threads) as peer:
        return peer.logits(ids)
