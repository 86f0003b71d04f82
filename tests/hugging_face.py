"""Tiny models in Hugging Face's form, saved by `transformers` itself: the files our loaders are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 300  # rows of the embedding; the tokenizer has 258 tokens
MERGES = [("t", "h"), ("th", "e")]  # in the place of two bytes that no text in UTF-8 has
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 256, "eos_token_id": 257,
}  # fmt: skip


def save_tokenizer(folder: Path) -> None:
    """Bytes, two merges and two special tokens."""
    tokens = [*sorted({*pre_tokenizers.ByteLevel.alphabet()} - {"\xfe", "\xff"}), *map("".join, MERGES)]
    pipeline = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=MERGES))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    pipeline.add_special_tokens(["<s>", "</s>"])
    pipeline.save(str(folder / "tokenizer.json"))


def save_model(
    folder: Path, kind: str, dtype: str = "float32", max_shard_size: str = "1GB", seed: int = 0, **config: Any
) -> Path:
    """A folder with a `{kind}ForCausalLM`; norms and biases are random too, where transformers begins with ones and zeros."""
    import torch
    import transformers

    settings = getattr(transformers, f"{kind}Config")(**SIZES | config)
    model = getattr(transformers, f"{kind}ForCausalLM")(settings)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(parameter.shape, generator=draw)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * 2 / parameter.shape[1] ** 0.5)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
    save_tokenizer(folder)
    return folder


def their_logits(folder: Path, token_ids: list[int]) -> np.ndarray:
    """What transformers computes from the folder, in float32: (tokens, vocabulary)."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].numpy()


def row_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest |difference| of a row over its largest value, over all rows."""
    return float((np.abs(ours - theirs).max(axis=1) / np.abs(theirs).max(axis=1)).max())
