"""The lab model: seeded random weights, the same bits on every machine, on which every equivalence is proved.

The weights come from the raw 64-bit words of the Philox counter generator, whose stream numpy keeps stable, through
exact arithmetic only: no transcendental function, so no platform's rounding. Each tensor has a stream of its own.
The scales make text that moves: the layers outweigh the embedding in the residual, or a tied head would repeat each
token for ever; logits spread over several units, so the best two are rarely close.

    >>> lab_checkpoint().tensors["model.norm.weight"].shape
    (256,)
"""

from __future__ import annotations

from math import prod

import numpy as np

from labcore.core.config import ModelConfig
from labcore.loaders.checkpoint import EMBEDDING, Checkpoint, Tensor, required_tensors, validate
from labcore.loaders.tokenizer import LabTokenizer

EMBEDDING_STD = 0.2
GAINS = {
    "q_proj": 1.5, "k_proj": 1.5, "v_proj": 1.0, "o_proj": 2.0, "gate_proj": 1.0, "up_proj": 1.0, "down_proj": 3.0,
    "gate": 2.0,  # the router: its logits spread over a few units, so a token's two experts have unlike weights
}  # fmt: skip
NORM_STD = 0.1


def lab_checkpoint(seed: int = 0, config: ModelConfig | None = None) -> Checkpoint:
    """The lab model, or one of another shape, with the weights of a seed, 0 or more; the head is tied."""
    config = config or ModelConfig.lab()
    tensors: dict[str, Tensor] = {}
    for stream, (name, shape) in enumerate(required_tensors(config).items()):
        tensors[name] = _weights(name, shape, np.random.Philox(key=np.array([seed, stream], np.uint64)))
    return validate(Checkpoint(config, tensors, LabTokenizer()), f"{config.name} with seed {seed}")


def _weights(name: str, shape: tuple[int, ...], bits: np.random.Philox) -> np.ndarray:
    uniform = _uniform(shape, bits)
    if len(shape) == 1:
        return np.float32(1.0) + uniform * np.float32(NORM_STD)
    if name == EMBEDDING:
        return uniform * np.float32(EMBEDDING_STD)
    gain = GAINS[name.split(".")[-2]]
    return uniform * np.float32(gain / shape[1] ** 0.5)


def _uniform(shape: tuple[int, ...], bits: np.random.Philox) -> np.ndarray:
    """float32, uniform with mean 0 and variance 1: the upper 24 bits of a word are an exact float32."""
    steps = (bits.random_raw(prod(shape)) >> np.uint64(40)).astype(np.float32)  # 0 .. 2^24 - 1
    centred = steps * np.float32(2.0**-23) - np.float32(1.0)
    return (centred * np.float32(3.0**0.5)).reshape(shape)
