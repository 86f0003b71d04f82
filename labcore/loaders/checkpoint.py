"""What a loader hands to a model: configuration, tensors, tokenizer, checked against each other.

Tensors carry the Hugging Face names of a Llama decoder, whatever the file calls them, and its row order: rotary
embedding in the halves convention. A dense tensor is float32; a matrix in a block format stays in it, on the mapped
file. `lm_head.weight` is optional: without it the embedding is the head too (tied).

    >>> from labcore.loaders.load import load_checkpoint
    >>> checkpoint = load_checkpoint("lab")
    >>> checkpoint.tensors["model.layers.0.self_attn.k_proj.weight"].shape
    (64, 256)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from labcore.core.config import ModelConfig
from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.tokenizer import Tokenizer
from labcore.quant.quantized_tensor import QuantizedTensor

Tensor = np.ndarray | QuantizedTensor

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model at rest."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    tokenizer: Tokenizer

    @property
    def tied(self) -> bool:
        """Whether the embedding is the head too."""
        return HEAD not in self.tensors


def layer_tensors(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's tensors; a matrix is (outputs, inputs)."""
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in config.projections.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in config.projections.items() if name in config.biases}
    shapes |= dict.fromkeys(("input_layernorm.weight", "post_attention_layernorm.weight"), (config.hidden_size,))
    if config.qk_norm:
        shapes |= dict.fromkeys(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), (config.head_dim,))
    return {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}


def _required(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield EMBEDDING, (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        yield from layer_tensors(config, layer).items()
    yield FINAL_NORM, (config.hidden_size,)


def required_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors that a decoder of this shape must have."""
    return dict(_required(config))


def validate(checkpoint: Checkpoint, source: str) -> Checkpoint:
    """The checkpoint itself, or InvalidCheckpoint: a tensor missing, unknown or of a wrong shape; another vocabulary."""
    config, tensors = checkpoint.config, checkpoint.tensors
    seen = 0
    for name, shape in _required(config):  # one by one: a wrong number of layers ends at the first that is missing
        if name not in tensors:
            raise InvalidCheckpoint(f"{source}: tensor {name} is missing; expected one of shape {shape}")
        _check_shape(source, name, tensors[name], shape)
        seen += 1
    if HEAD in tensors:
        _check_shape(source, HEAD, tensors[HEAD], (config.vocab_size, config.hidden_size))
        seen += 1
    if seen != len(tensors):
        unknown = sorted(tensors.keys() - required_tensors(config) - {HEAD})
        raise InvalidCheckpoint(f"{source}: tensor {unknown[0]!r:.80} has no place in a decoder of {config.num_layers} layers")
    if checkpoint.tokenizer.vocab_size != config.vocab_size:
        raise InvalidCheckpoint(
            f"{source}: the tokenizer has {checkpoint.tokenizer.vocab_size} tokens, the embedding {config.vocab_size} rows"
        )
    return checkpoint


def _check_shape(source: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise InvalidCheckpoint(f"{source}: tensor {name} has shape {tensor.shape}; expected {shape}")
