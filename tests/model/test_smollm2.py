"""The real model: logits against transformers, text on every backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from support import BACKENDS, ids, paged_batch

from labcore.core.config import CacheConfig
from labcore.engine.llm import LLM
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.api import Backend
from labcore.kernels.reference import ReferenceBackend
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model
from labcore.quant.error import logit_error

TEXT = (
    "The capital of France is Paris, and its river is the Seine. In 1889 a tower of iron was built there for a fair. "
    "It is 300 metres high. "
    "def add(a, b):\n    return a + b\n\nHow do planes fly? The wing turns the air downward, and the air pushes the wing up. "
    "Zürich, São Paulo, 東京 and Київ are cities; 😀 is not. She sells sea shells by the sea shore, 12 of them for 3.50 each, "
    "and nobody asks where they came from. Once upon a time there was a small engine that could batch every request it was given."
)
PROMPT = "The capital of France is"
LARGE_GAP = 1e-3
# float64 row by row is the oracle itself; it takes a second a token, and the greedy text of all backends is compared with it
ALL_BACKENDS: dict[str, Callable[[], Backend]] = {**BACKENDS, "reference": lambda: ReferenceBackend(np.float64)}


@cache
def model_on(backend: str, weights: str) -> LlamaModel:
    return load_model("smollm2", weights=weights, backend=ALL_BACKENDS[backend]())


def logits_of(model: LlamaModel, token_ids: list[int]) -> np.ndarray:
    """Logits after every token, (tokens, vocab), from one ragged batch over scattered blocks."""
    n = len(token_ids)
    batch = paged_batch(np.random.default_rng(0), [n], [n], 16, 40)
    full = type(batch)(
        **{name: getattr(batch, name) for name in batch.__slots__}
        | {"token_ids": ids(token_ids), "logits_indices": ids(range(n))}
    )
    return model.forward(full, model.new_kv_cache(CacheConfig(block_size=16, num_blocks=40)))


def gap(row: np.ndarray) -> float:
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)


@pytest.fixture(scope="module")
def token_ids(smollm2_hf_tokenizer: Any) -> list[int]:
    tokens = smollm2_hf_tokenizer(TEXT * 2)["input_ids"][:256]
    assert len(tokens) == 256
    return tokens


@pytest.fixture(scope="module")
def hf_logits(smollm2_hf_model: Any, token_ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return smollm2_hf_model(torch.tensor([token_ids])).logits[0].numpy()


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_match_transformers(backend: str, token_ids: list[int], hf_logits: np.ndarray) -> None:
    ours = logits_of(model_on(backend, "f32"), token_ids)
    error = np.abs(ours - hf_logits).max(axis=1) / np.abs(hf_logits).max(axis=1)
    print(f"{backend}: largest row error {error.max():.1e}")
    assert error.max() <= 1e-4
    clear = np.array([gap(row) for row in hf_logits]) > LARGE_GAP
    assert clear.sum() > 200
    assert np.array_equal(ours.argmax(axis=1)[clear], hf_logits.argmax(axis=1)[clear])


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_weights_beside_their_expansion(backend: str, token_ids: list[int]) -> None:
    """Backends without packed products expand them. The native one multiplies integers: what that is to the bit is tested
    product by product (kernels/test_packed_products.py); here, that the laws of the next token stay close."""
    some = token_ids[:120]
    packed, expanded = (logits_of(model_on(backend, form), some) for form in ("packed", "f32"))
    if not backend.startswith("native"):
        assert np.array_equal(packed, expanded)
        return
    error = logit_error(expanded, packed)
    print(f"{backend}: {error}")
    assert 0 < error.mean_kl < 0.01
    clear = np.array([gap(row) for row in expanded]) > 1.0
    assert clear.sum() > 40
    assert np.array_equal(packed.argmax(axis=1)[clear], expanded.argmax(axis=1)[clear])


@pytest.mark.parametrize("weights", ["f32", "packed"])
@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_the_capital_is_paris(backend: str, weights: str) -> None:
    if backend == "reference" and weights == "packed":
        weights = "f32"  # it has no packed products: the same arrays, expanded once
    [answer] = LLM(model_on(backend, weights)).generate(PROMPT, SamplingParams(max_tokens=8, temperature=0.0))
    assert "Paris" in answer.text


def test_greedy_text_is_the_same_on_all_backends() -> None:
    """The oracle's 32 tokens are fed to every backend; wherever its best two are apart, all choose the same next token."""
    oracle = model_on("reference", "f32")
    [answer] = LLM(oracle).generate(PROMPT, SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True))
    prompt = oracle.tokenizer.encode(PROMPT)
    text, first = prompt + answer.token_ids, len(prompt) - 1
    wanted = logits_of(oracle, text)[first:-1]
    assert np.array_equal(wanted.argmax(axis=1), answer.token_ids)
    clear = np.array([gap(row) for row in wanted]) > LARGE_GAP
    assert clear.sum() >= 30
    for backend in BACKENDS:
        chosen = logits_of(model_on(backend, "f32"), text)[first:-1].argmax(axis=1)
        assert np.array_equal(chosen[clear], np.array(answer.token_ids)[clear]), backend
