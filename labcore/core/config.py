"""Frozen configurations, composed. Derived values are properties; presets are class methods.

>>> ModelConfig.lab().kv_bytes_per_token()   # 2 (K and V) x 4 layers x 2 heads x 32 x 4 bytes
2048
"""

from __future__ import annotations

from dataclasses import dataclass, field

from labcore.core.errors import InvalidConfig

MAX_MODEL_LEN = 1 << 20
MAX_BLOCKS = 1 << 22
_MODEL_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")


def _at_least(least: int, config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or not value >= least:
            raise InvalidConfig(f"{type(config).__name__}.{name} is {value!r}; expected a whole number, {least} or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a Llama-family decoder.

    Source: Touvron et al. 2023 (LLaMA); grouped-query attention after Ainslie et al. 2023.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rope_theta: float
    rms_norm_eps: float

    def __post_init__(self) -> None:
        _at_least(1, self, *_MODEL_SIZES, "max_model_len")
        if self.num_heads % self.num_kv_heads:
            raise InvalidConfig(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise InvalidConfig(f"head_dim is {self.head_dim}; rotary embedding needs an even number")
        if self.max_model_len > MAX_MODEL_LEN:  # a damaged file may say anything; the rope tables have a row per position
            raise InvalidConfig(f"max_model_len is {self.max_model_len}; expected at most {MAX_MODEL_LEN}")
        if not 0 < self.rope_theta < float("inf"):
            raise InvalidConfig(f"rope_theta is {self.rope_theta}; expected a positive number")
        if not 0 < self.rms_norm_eps < 1:
            raise InvalidConfig(f"rms_norm_eps is {self.rms_norm_eps}; expected a number in (0, 1)")

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Weights of the decoder with a tied head: embedding, layers, final norm."""
        h, f = self.hidden_size, self.intermediate_size
        layer = 2 * h * self.q_size + 2 * h * self.kv_size + 3 * h * f + 2 * h
        return self.vocab_size * h + self.num_layers * layer + h

    def kv_bytes_per_token(self, itemsize: int = 4) -> int:
        """Bytes of K and V that one token adds, over all layers."""
        return 2 * self.num_layers * self.kv_size * itemsize

    @classmethod
    def lab(cls) -> ModelConfig:
        """The lab model: small, seeded, random; every equivalence is proved on it."""
        return cls(
            name="lab",
            vocab_size=1024,
            hidden_size=256,
            intermediate_size=768,
            num_layers=4,
            num_heads=8,
            num_kv_heads=2,
            head_dim=32,
            max_model_len=2048,
            rope_theta=10000.0,
            rms_norm_eps=1e-5,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The KV pool: `num_blocks` blocks of `block_size` token slots."""

    block_size: int = 16
    num_blocks: int = 512

    def __post_init__(self) -> None:
        _at_least(1, self, "block_size", "num_blocks")
        if self.num_blocks > MAX_BLOCKS or self.block_size > MAX_MODEL_LEN:
            raise InvalidConfig(
                f"num_blocks is {self.num_blocks} and block_size {self.block_size}; "
                f"expected at most {MAX_BLOCKS} blocks of at most {MAX_MODEL_LEN} slots"
            )

    @property
    def num_slots(self) -> int:
        return self.block_size * self.num_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The limits of one step.

    max_num_batched_tokens: tokens computed in a step, over all sequences.
    max_num_seqs:           sequences running at the same time.
    max_chunk_tokens:       tokens of one sequence in a step (chunked prefill); None = the whole budget.
    watermark_blocks:       blocks that an admission leaves free, so that running sequences can grow.
    """

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 32
    max_chunk_tokens: int | None = None
    watermark_blocks: int = 1

    def __post_init__(self) -> None:
        _at_least(1, self, "max_num_batched_tokens", "max_num_seqs")
        _at_least(0, self, "watermark_blocks")
        if self.max_chunk_tokens is not None:
            _at_least(1, self, "max_chunk_tokens")

    @property
    def chunk_limit(self) -> int:
        return min(self.max_chunk_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that an engine is told; `seed` feeds the requests that bring none of their own."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least(0, self, "seed")
        if self.seed >= 1 << 32:
            raise InvalidConfig(f"EngineConfig.seed is {self.seed}; expected at most 2**32 - 1")
