"""Oracles that several rooms' tests share; each is built once and only if a test asks for it."""

from __future__ import annotations

from typing import Any

import gguf
import pytest
from hypothesis import settings

from labcore.loaders import zoo

# The same examples on every run, and no limit on how long one takes: a slow machine is no fault of the code.
settings.register_profile("lab", deadline=None, derandomize=True)
settings.load_profile("lab")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows what tests recorded beside their result: unlike a print it comes through from another process too."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")


@pytest.fixture(scope="session")
def smollm2_gguf_reader() -> gguf.GGUFReader:
    """SmolLM2's file in gguf's own reader (about 3 s)."""
    return gguf.GGUFReader(zoo.model_path("smollm2"))


@pytest.fixture(scope="session")
def smollm2_hf_tokenizer() -> Any:
    """SmolLM2's tokenizer in transformers (about 8 s), from the same GGUF file, with the pre-tokenizer the model was made with.

    transformers reads vocabulary, merges and special tokens of the file, but not that `tokenizer.ggml.pre` is "smollm":
    it falls back to GPT-2's words. The tokenizer.json that SmolLM2 was published with cuts out each digit first, which
    shows where spaces stand before digits ("a  1"), and for numbers that are no decimal digits ("½²"). So that step is
    put in front; tests/loaders/test_bpe.py shows the difference and checks ours against a third implementation.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    path = zoo.model_path("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    return tokenizer


@pytest.fixture(scope="session")
def smollm2_hf_model() -> Any:
    """SmolLM2 in transformers, float32, expanded from the same GGUF file by transformers' own conversion."""
    import torch
    from transformers import AutoModelForCausalLM

    path = zoo.model_path("smollm2")
    return AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()
