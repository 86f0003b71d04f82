"""Frozen configurations, composed. Derived values are properties; presets are class methods.

>>> ModelConfig.lab().kv_bytes_per_token()   # 2 (K and V) x 4 layers x 2 heads x 32 x 4 bytes
2048
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import pi

from labcore.core.checks import at_least, one_of, positive
from labcore.core.errors import InvalidConfig
from labcore.core.speculative_config import SpeculativeConfig

MAX_MODEL_LEN = 1 << 20
MAX_BLOCKS = 1 << 22
MAX_EXPERTS = 1 << 12  # of a layer: the largest published have some thousands, and a damaged file may say anything
MAX_ROPE_NUMBERS = 1 << 27  # max_model_len x head_dim: a million positions of 128; cos and sin take 4 bytes of each in float64
PROJECTIONS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
QKV, ATTENTION, MLP = frozenset(PROJECTIONS[:3]), frozenset(PROJECTIONS[:4]), frozenset(PROJECTIONS[4:])
KV_DTYPES = ("float32", "int8")
PREFIX_CACHES = ("none", "radix", "hash")
POLICIES = ("fcfs", "priority", "lpm")
_MODEL_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")


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
        positive(self, "factor")

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
        positive(self, "factor", "low_freq_factor", "high_freq_factor")
        at_least(1, self, "original_max_model_len")
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
class MoEConfig:
    """A layer's feed-forward as many experts, of which a router chooses a few for each token. Source: Shazeer et al. 2017.

    norm_topk_prob: whether the weights of the chosen are divided by their sum (Mixtral always does).
    shared_expert_intermediate_size: of one more expert that every token passes, behind a gate (Qwen2-MoE); 0 = there is none.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    shared_expert_intermediate_size: int = 0

    def __post_init__(self) -> None:
        at_least(1, self, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
        at_least(0, self, "shared_expert_intermediate_size")
        if not self.num_experts_per_tok <= self.num_experts <= MAX_EXPERTS:
            raise InvalidConfig(
                f"num_experts is {self.num_experts} and num_experts_per_tok {self.num_experts_per_tok}; "
                f"expected at most {MAX_EXPERTS} experts, and not more of them per token than there are"
            )

    def matrices(self, hidden_size: int) -> dict[str, tuple[int, int]]:
        """The matrices by name, (outputs, inputs): the router (`mlp.gate`), the experts, the shared expert and its gate."""
        found = {"mlp.gate": (self.num_experts, hidden_size)}
        for expert in range(self.num_experts):
            found |= _gated(f"mlp.experts.{expert}", self.moe_intermediate_size, hidden_size)
        if shared := self.shared_expert_intermediate_size:
            found |= _gated("mlp.shared_expert", shared, hidden_size) | {"mlp.shared_expert_gate": (1, hidden_size)}
        return found


def _gated(name: str, inner: int, hidden: int) -> dict[str, tuple[int, int]]:
    """The matrices of one gated feed-forward, (outputs, inputs)."""
    return {f"{name}.gate_proj": (inner, hidden), f"{name}.up_proj": (inner, hidden), f"{name}.down_proj": (hidden, inner)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a Llama-family decoder.

    rope_scaling: what is done to the frequencies of the rotary embedding.
    biases:       the projections that add one (of PROJECTIONS): q, k and v in Qwen2.
    qk_norm:      whether each head of q and of k goes through an RMSNorm of its own before the rotation (Qwen3).
    moe:          the experts in the place of each layer's feed-forward, whose intermediate_size then says nothing; None = dense.
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
    moe: MoEConfig | None = None

    def __post_init__(self) -> None:
        at_least(1, self, *_MODEL_SIZES, "max_model_len")
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
        positive(self, "rope_theta", "rms_norm_eps")
        if not self.rms_norm_eps < 1:
            raise InvalidConfig(f"rms_norm_eps is {self.rms_norm_eps}; expected a number in (0, 1)")
        biased = PROJECTIONS[:4] if self.moe else PROJECTIONS
        if unknown := self.biases.difference(biased):
            raise InvalidConfig(f"biases name {min(unknown)!r}; expected some of {', '.join(biased)}")

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer by name, (outputs, inputs)."""
        h, q, kv = self.hidden_size, self.q_size, self.kv_size
        attention = dict(zip(PROJECTIONS[:4], [(q, h), (kv, h), (kv, h), (h, q)], strict=True))
        return attention | (self.moe.matrices(h) if self.moe else _gated("mlp", self.intermediate_size, h))

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

    @classmethod
    def lab_moe(cls) -> ModelConfig:
        """The lab model with 8 experts: a token passes 2 of 384, so its arithmetic is that of the lab model's 768."""
        experts = MoEConfig(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=384, norm_topk_prob=True)
        return replace(cls.lab(), name="lab-moe", moe=experts)


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
        at_least(1, self, "block_size", "num_blocks")
        if self.num_blocks > MAX_BLOCKS or self.block_size > MAX_MODEL_LEN:
            raise InvalidConfig(
                f"num_blocks is {self.num_blocks} and block_size {self.block_size}; "
                f"expected at most {MAX_BLOCKS} blocks of at most {MAX_MODEL_LEN} slots"
            )
        if self.block_size & (self.block_size - 1):
            raise InvalidConfig(f"block_size is {self.block_size}; expected a power of two")
        one_of(KV_DTYPES, self, "kv_dtype")
        one_of(PREFIX_CACHES, self, "prefix_cache")

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
        at_least(1, self, "max_num_batched_tokens", "max_num_seqs")
        at_least(0, self, "watermark_blocks")
        if self.max_chunk_tokens is not None:
            at_least(1, self, "max_chunk_tokens")
        one_of(POLICIES, self, "policy")

    @property
    def chunk_limit(self) -> int:
        return min(self.max_chunk_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that an engine is told; `seed` feeds the requests that bring none of their own."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(0, self, "seed")
        if self.seed >= 1 << 32:
            raise InvalidConfig(f"EngineConfig.seed is {self.seed}; expected at most 2**32 - 1")
