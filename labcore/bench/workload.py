"""Workloads, and what they must cost: bytes, operations, and from the ceilings a floor in seconds.

A decode step reads every weight once for all its sequences, and each sequence's keys and values once for itself. A prefill reads
the weights once and multiplies them with every token of the prompt; the head is asked for the last token only. Activations are
left out: they stay in caches. Prompts are random and never the same twice, so that no engine can remember one.

    >>> DECODES[0].name, DECODES[0].tokens        # tokens in a step
    ('decode, batch 1', 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labcore.bench.ceilings import Ceilings
from labcore.core.errors import InvalidConfig
from labcore.loaders.checkpoint import EMBEDDING, Checkpoint

FIRST_ORDINARY_ID = 256  # special tokens have lower ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`batch` prompts of `prompt_tokens` each. new_tokens: 1 is a prefill alone; more are decode steps behind it, which count."""

    batch: int
    prompt_tokens: int
    new_tokens: int

    @property
    def prefills(self) -> bool:
        return self.new_tokens == 1

    @property
    def name(self) -> str:
        return f"prefill {self.prompt_tokens}" if self.prefills else f"decode, batch {self.batch}"

    @property
    def tokens(self) -> int:
        """Computed in the time that is taken: of the whole prompt, or of a decode step."""
        return self.batch * self.prompt_tokens if self.prefills else self.batch

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        ids = np.random.default_rng(seed).integers(FIRST_ORDINARY_ID, vocab_size, (self.batch, self.prompt_tokens))
        return [list(map(int, row)) for row in ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Clients that each wait for an answer before they ask again; prompts begin with one of a few prefixes."""

    seed: int
    num_clients: int
    num_requests: int
    num_prefixes: int
    prefix_tokens: int
    own_tokens: int
    new_tokens: int

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """One for each request; prefixes in turn, everything else random."""
        rng = np.random.default_rng(self.seed)
        prefixes = rng.integers(FIRST_ORDINARY_ID, vocab_size, (self.num_prefixes, self.prefix_tokens)).tolist()
        own = rng.integers(FIRST_ORDINARY_ID, vocab_size, (self.num_requests, self.own_tokens)).tolist()
        return [prefixes[i % self.num_prefixes] + rest for i, rest in enumerate(own)]


# A pool of 512 blocks of 16: the prompts alone would fill it 22 times over without a shared prefix.
PRESSURE = ClosedLoop(
    seed=0, num_clients=8, num_requests=320, num_prefixes=4, prefix_tokens=528, own_tokens=20, new_tokens=8
)  # fmt: skip
PREFILL = Workload(batch=1, prompt_tokens=512, new_tokens=1)
DECODES = tuple(Workload(batch=batch, prompt_tokens=32, new_tokens=64) for batch in (1, 4, 8, 16, 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a workload's counted time must cost at the least."""

    weight_bytes: int
    kv_bytes: int  # read and written
    matrix_flops: int  # of products with weights
    attention_flops: int

    def floor(self, ceilings: Ceilings, packed: bool) -> float:
        """Seconds. packed: the products may use the int8 rate, as block formats allow; attention is float32."""
        int8, f32 = (self.matrix_flops, 0) if packed and ceilings.int8_dots else (0, self.matrix_flops)
        return ceilings.floor(bytes=self.weight_bytes + self.kv_bytes, flops=f32 + self.attention_flops, int8_ops=int8)

    def bound(self, ceilings: Ceilings, packed: bool) -> str:
        """What the floor is made of: bytes or arithmetic."""
        by_bytes = ceilings.floor(bytes=self.weight_bytes + self.kv_bytes)
        return "bytes" if self.floor(ceilings, packed) == by_bytes else "arithmetic"


class Costs:
    """The costs of a checkpoint's workloads. weights: "packed" counts the file's bytes, "f32" four for each weight."""

    def __init__(self, checkpoint: Checkpoint, weights: str) -> None:
        self._checkpoint, self._config = checkpoint, checkpoint.config
        if self._config.moe:
            raise InvalidConfig(f"{self._config.name} has experts: what a step reads follows its routing; expected a dense model")
        first = checkpoint.tensors["model.layers.0.mlp.down_proj.weight"]
        self.packed = weights == "packed" and not isinstance(first, np.ndarray)

    @cached_property
    def weight_bytes(self) -> int:
        """Of all weights that a step reads. A tied embedding is read whole, as the head; another one by rows: next to nothing."""
        skipped = set() if self._checkpoint.tied else {EMBEDDING}
        names = [name for name in self._checkpoint.tensors if name not in skipped]
        if self.packed:
            return sum(self._checkpoint.tensors[name].nbytes for name in names)
        return 4 * sum(int(np.prod(self._checkpoint.shapes[name])) for name in names)

    def of(self, workload: Workload) -> Cost:
        c, batch = self._config, workload.batch
        projections = sum(rows * columns for rows, columns in c.projections.values()) * c.num_layers
        head = c.vocab_size * c.hidden_size
        if workload.prefills:
            new, context = workload.prompt_tokens, workload.prompt_tokens
            seen = workload.prompt_tokens * (workload.prompt_tokens + 1) // 2  # the query at position p sees p + 1 keys
        else:
            new, context = 1, workload.prompt_tokens + workload.new_tokens // 2  # on average over the steps
            seen = context
        return Cost(
            weight_bytes=self.weight_bytes,
            kv_bytes=batch * (context + new) * c.kv_bytes_per_token(),
            matrix_flops=2 * batch * (new * projections + head),
            attention_flops=4 * batch * seen * c.q_size * c.num_layers,
        )
