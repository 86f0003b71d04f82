"""What a loader hands to a model: configuration, tensors, tokenizer, checked against each other.

Tensors carry the Hugging Face names of a Llama decoder, whatever the file calls them, and its row order: rotary
embedding in the halves convention. A dense tensor is float32; a matrix in a block format, or in int8, stays in it, on the
mapped file. A loader makes each when it is asked for. `lm_head.weight` is optional: without it the embedding is the head
too (tied).

    >>> from labcore.loaders.load import load_checkpoint
    >>> checkpoint = load_checkpoint("lab")
    >>> checkpoint.tensors["model.layers.0.self_attn.k_proj.weight"].shape
    (64, 256)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from labcore.core.config import ModelConfig
from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.tokenizer import Tokenizer
from labcore.quant.int8 import Int8Tensor
from labcore.quant.quantized_tensor import QuantizedTensor

Tensor = np.ndarray | QuantizedTensor | Int8Tensor

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class LazyTensors(Mapping[str, Tensor]):
    """Tensors that are made when they are asked for, anew each time: only those in use take memory."""

    shapes: Mapping[str, tuple[int, ...]]
    make: Callable[[str], Tensor]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self.make(name)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


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

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The tensors' shapes, by name; none is made for it."""
        if isinstance(self.tensors, LazyTensors):
            return self.tensors.shapes
        return {name: tensor.shape for name, tensor in self.tensors.items()}


def readable(name: str) -> str:
    """The name of a file as text: on some systems it is bytes, and no UTF-8."""
    return os.fsencode(name).decode("utf-8", errors="replace")


def layer_tensors(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's tensors; a matrix is (outputs, inputs). Their order numbers the lab model's streams."""
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (config.hidden_size,)}
    for name, shape in config.projections.items():
        if name.startswith("mlp.") and "post_attention_layernorm.weight" not in shapes:
            shapes["post_attention_layernorm.weight"] = (config.hidden_size,)
        shapes[f"{name}.weight"] = shape
    shapes |= {f"{name}.bias": shape[:1] for name, shape in config.projections.items() if name in config.biases}
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
    config, shapes = checkpoint.config, checkpoint.shapes
    seen = 0
    for name, shape in _required(config):  # one by one: a wrong number of layers ends at the first that is missing
        if name not in shapes:
            raise InvalidCheckpoint(f"{source}: tensor {name} is missing; expected one of shape {shape}")
        _check_shape(source, name, shapes[name], shape)
        seen += 1
    if HEAD in shapes:
        _check_shape(source, HEAD, shapes[HEAD], (config.vocab_size, config.hidden_size))
        seen += 1
    if seen != len(shapes):
        unknown = sorted(shapes.keys() - required_tensors(config) - {HEAD})
        raise InvalidCheckpoint(f"{source}: tensor {unknown[0]!r:.80} has no place in a decoder of {config.num_layers} layers")
    if checkpoint.tokenizer.vocab_size != config.vocab_size:
        raise InvalidCheckpoint(
            f"{source}: the tokenizer has {checkpoint.tokenizer.vocab_size} tokens, the embedding {config.vocab_size} rows"
        )
    return checkpoint


def _check_shape(source: str, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise InvalidCheckpoint(f"{source}: tensor {name} has shape {shape!s:.80}; expected {expected}")
