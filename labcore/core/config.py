"""Frozen configurations, composed. Derived values are properties; presets are class methods.

>>> ModelConfig.lab().kv_bytes_per_token()   # 2 (K and V) x 4 layers x 2 heads x 32 x 4 bytes
2048
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import pi

from labcore.core.errors import InvalidConfig

MAX_MODEL_LEN = 1 << 20
MAX_BLOCKS = 1 << 22
MAX_ROPE_NUMBERS = 1 << 27  # max_model_len x head_dim: a million positions of 128; cos and sin take 4 bytes of each in float64
PROJECTIONS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
QKV, ATTENTION, MLP = frozenset(PROJECTIONS[:3]), frozenset(PROJECTIONS[:4]), frozenset(PROJECTIONS[4:])
KV_DTYPES = ("float32", "int8")
PREFIX_CACHES = ("none", "radix", "hash")
PROPOSERS = ("none", "ngram", "draft")
POLICIES = ("fcfs", "priority", "lpm")
_MODEL_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")


def _at_least(least: int, config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or not value >= least:
            raise InvalidConfig(f"{type(config).__name__}.{name} is {value!r}; expected a whole number, {least} or more")


def _positive(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise InvalidConfig(f"{type(config).__name__}.{name} is {value!r}; expected a positive number")


def _one_of(known: tuple[str, ...], config: object, name: str) -> None:
    value = getattr(config, name)
    if value not in known:
        raise InvalidConfig(f"{type(config).__name__}.{name} is {value!r}; expected one of {', '.join(known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRope:
    """Rotary embedding as it was trained: no frequency is scaled. Su et al. 2021."""

    def scaled(self, frequency: float) -> float:
        """The frequency (radians per position) that is used in the place of `frequency`."""
        return frequency


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRope:
    """Every frequency divided by `factor`: positions are squeezed into the trained range. Chen et al. 2023."""

    factor: float

    def __post_init__(self) -> None:
        _positive(self, "factor")

    def scaled(self, frequency: float) -> float:
        return frequency / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Rope:
    """Long waves divided by `factor`, short ones kept, a smooth passage between. Source: Llama 3.1.

    A wave that fits less than `low_freq_factor` times into `original_max_model_len` is long, more than
    `high_freq_factor` times short.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_model_len: int

    def __post_init__(self) -> None:
        _positive(self, "factor", "low_freq_factor", "high_freq_factor")
        _at_least(1, self, "original_max_model_len")
        if not self.low_freq_factor < self.high_freq_factor:
            raise InvalidConfig(
                f"Llama3Rope.low_freq_factor is {self.low_freq_factor} and high_freq_factor {self.high_freq_factor}; "
                "expected the first to be less"
            )

    def scaled(self, frequency: float) -> float:
        turns = self.original_max_model_len * frequency / (2 * pi)  # of this wave in the trained context
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = min(max(smooth, 0.0), 1.0)
        return kept * frequency + (1 - kept) * frequency / self.factor


RopeScaling = PlainRope | LinearRope | Llama3Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a Llama-family decoder.

    rope_scaling: what is done to the frequencies of the rotary embedding.
    biases:       the projections that add one (of PROJECTIONS): q, k and v in Qwen2.
    qk_norm:      whether each head of q and of k goes through an RMSNorm of its own before the rotation (Qwen3).
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
    rope_scaling: RopeScaling = PlainRope()
    biases: frozenset[str] = frozenset()
    qk_norm: bool = False

    def __post_init__(self) -> None:
        _at_least(1, self, *_MODEL_SIZES, "max_model_len")
        if self.num_heads % self.num_kv_heads:
            raise InvalidConfig(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise InvalidConfig(f"head_dim is {self.head_dim}; rotary embedding needs an even number")
        if self.max_model_len > MAX_MODEL_LEN:  # a damaged file may say anything; the rope tables have a row per position
            raise InvalidConfig(f"max_model_len is {self.max_model_len}; expected at most {MAX_MODEL_LEN}")
        if self.max_model_len * self.head_dim > MAX_ROPE_NUMBERS:
            raise InvalidConfig(
                f"max_model_len is {self.max_model_len} and head_dim {self.head_dim}; "
                f"expected a product of at most {MAX_ROPE_NUMBERS}"
            )
        _positive(self, "rope_theta", "rms_norm_eps")
        if not self.rms_norm_eps < 1:
            raise InvalidConfig(f"rms_norm_eps is {self.rms_norm_eps}; expected a number in (0, 1)")
        if unknown := self.biases.difference(PROJECTIONS):
            raise InvalidConfig(f"biases name {min(unknown)!r}; expected some of {', '.join(PROJECTIONS)}")

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer by name, (outputs, inputs)."""
        h, f = self.hidden_size, self.intermediate_size
        return dict(
            zip(
                PROJECTIONS,
                [(self.q_size, h), (self.kv_size, h), (self.kv_size, h), (h, self.q_size), (f, h), (f, h), (h, f)],
                strict=True,
            )
        )

    @property
    def num_parameters(self) -> int:
        """Weights of the decoder with a tied head: embedding, layers, final norm."""
        matrices = sum(outputs * inputs for outputs, inputs in self.projections.values())
        biases = sum(outputs for name, (outputs, _) in self.projections.items() if name in self.biases)
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        return self.vocab_size * self.hidden_size + self.num_layers * (matrices + biases + norms) + self.hidden_size

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
    """The KV pool: `num_blocks` blocks of `block_size` token slots.

    kv_dtype: how the numbers lie in it. "int8" has one float32 scale per token and kv head: (head_dim + 4) bytes a head in
              the place of 4 head_dim. Answers then differ a little from those of "float32".
    prefix_cache: what finds blocks that were computed before: "none", "radix" (a tree) or "hash" (a table).
    """

    block_size: int = 16
    num_blocks: int = 512
    kv_dtype: str = "float32"
    prefix_cache: str = "none"

    def __post_init__(self) -> None:
        _at_least(1, self, "block_size", "num_blocks")
        if self.num_blocks > MAX_BLOCKS or self.block_size > MAX_MODEL_LEN:
            raise InvalidConfig(
                f"num_blocks is {self.num_blocks} and block_size {self.block_size}; "
                f"expected at most {MAX_BLOCKS} blocks of at most {MAX_MODEL_LEN} slots"
            )
        if self.block_size & (self.block_size - 1):
            raise InvalidConfig(f"block_size is {self.block_size}; expected a power of two")
        _one_of(KV_DTYPES, self, "kv_dtype")
        _one_of(PREFIX_CACHES, self, "prefix_cache")

    @property
    def num_slots(self) -> int:
        return self.block_size * self.num_blocks

    @classmethod
    def one_block(cls, num_tokens: int, kv_dtype: str = "float32") -> CacheConfig:
        """A pool of a single block that holds so many tokens."""
        return cls(block_size=1 << max(num_tokens - 1, 0).bit_length(), num_blocks=1, kv_dtype=kv_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The limits of one step.

    max_num_batched_tokens: tokens computed in a step, over all sequences.
    max_num_seqs:           sequences running at the same time.
    max_chunk_tokens:       tokens of one sequence in a step (chunked prefill); None = the whole budget.
    watermark_blocks:       blocks that an admission leaves free, so that running sequences can grow.
    policy:                 who is admitted next: "fcfs" (the oldest), "priority" (the smallest number, then the oldest; it may
                            preempt larger numbers), "lpm" (the longest prefix in the cache, within bounds).
    """

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 32
    max_chunk_tokens: int | None = None
    watermark_blocks: int = 1
    policy: str = "fcfs"

    def __post_init__(self) -> None:
        _at_least(1, self, "max_num_batched_tokens", "max_num_seqs")
        _at_least(0, self, "watermark_blocks")
        if self.max_chunk_tokens is not None:
            _at_least(1, self, "max_chunk_tokens")
        _one_of(POLICIES, self, "policy")

    @property
    def chunk_limit(self) -> int:
        return min(self.max_chunk_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Who guesses the next tokens, for a step to verify.

    method:           "none", "ngram" (what followed the last few tokens where they stood before), "draft" (a smaller model).
    num_draft_tokens: guesses for a sequence in a step, at the most.
    adaptive:         as many as their measured acceptance pays for; else always the most.
    min_ngram, max_ngram: tokens that must stand before a guess by "ngram"; longer ones are looked for first.
    draft_layers:     for "draft" without a model of its own: the first layers of the model itself.
    """

    method: str = "none"
    num_draft_tokens: int = 4
    adaptive: bool = True
    min_ngram: int = 2
    max_ngram: int = 4
    draft_layers: int = 1

    def __post_init__(self) -> None:
        _one_of(PROPOSERS, self, "method")
        _at_least(1, self, "num_draft_tokens", "min_ngram", "max_ngram", "draft_layers")
        if self.min_ngram > self.max_ngram:
            raise InvalidConfig(f"min_ngram is {self.min_ngram}; expected at most max_ngram, {self.max_ngram}")
        if not isinstance(self.adaptive, bool):
            raise InvalidConfig(f"adaptive is {self.adaptive!r}; expected True or False")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that an engine is told; `seed` feeds the requests that bring none of their own."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least(0, self, "seed")
        if self.seed >= 1 << 32:
            raise InvalidConfig(f"EngineConfig.seed is {self.seed}; expected at most 2**32 - 1")
