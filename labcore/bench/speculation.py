"""`labcore spec`: what guesses bring. How often they stand, by their place; tokens a pass of the model; time against plain.

The prompts are kinds of work that guesses suit, or do not: to copy and extract, to summarise, to tell, to write code.

    >>> found = bench_speculation("lab", SpeculativeConfig(method="draft", draft_layers=3), rounds=1)    # doctest: +SKIP
    >>> found["kinds"]["copy"]["tokens_per_pass"]                                                        # doctest: +SKIP
    1.3
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labcore.bench.harness import Goal, alternate
from labcore.bench.stamp import stamp
from labcore.core.config import CacheConfig, EngineConfig, SpeculativeConfig
from labcore.core.machine import num_cores
from labcore.core.trace import StepRecord
from labcore.engine.llm_engine import LLMEngine
from labcore.engine.sampling_params import SamplingParams
from labcore.kernels.registry import get_backend
from labcore.loaders.chat import chat_prompt_ids
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model

PROMPTS: dict[str, list[str]] = json.loads((Path(__file__).parent / "texts" / "prompts.json").read_text(encoding="utf-8"))
SUITED = "copy"
FASTER, TOKENS, NO_SLOWER = 1.5, 1.6, 0.95  # what n-gram guesses must bring SmolLM2 where they suit, and elsewhere
BLOCKS = 64  # of 16 tokens: prompt and answer of each text, with room


@dataclass(frozen=True, slots=True)
class Counts:
    """What the records say of the passes that brought tokens.

    judged: by place, the guesses that were looked at: those behind a wrong one are not. right: of these, the right ones.
    """

    num_passes: int
    num_tokens: int
    judged: tuple[int, ...]
    right: tuple[int, ...]

    @classmethod
    def of(cls, records: Iterable[StepRecord]) -> Counts:
        shares = [share for record in records for share in record.scheduled if share.sampled]
        places = range(max((share.num_draft for share in shares), default=0))
        return cls(
            num_passes=len(shares),
            num_tokens=sum(len(share.sampled) for share in shares),
            judged=tuple(sum(share.num_draft > i and share.num_accepted >= i for share in shares) for i in places),
            right=tuple(sum(share.num_accepted > i for share in shares) for i in places),
        )

    @property
    def acceptance(self) -> float:
        """The share of right guesses among those that were looked at."""
        return sum(self.right) / sum(self.judged) if self.judged else 0.0

    @property
    def tokens_per_pass(self) -> float:
        return self.num_tokens / self.num_passes if self.num_passes else 0.0


def prompts_of(model: LlamaModel, texts: Sequence[str]) -> list[list[int]]:
    """Each text as what a user says to the model."""
    return [chat_prompt_ids(model.tokenizer, [{"role": "user", "content": text}], model=model.config.name) for text in texts]


def generate(
    model: LlamaModel, prompts: Sequence[list[int]], speculative: SpeculativeConfig, max_tokens: int = 64
) -> tuple[list[list[int]], list[StepRecord]]:
    """Greedy answers to prompts, one after the other, and the records of all steps."""
    records: list[StepRecord] = []
    config = EngineConfig(cache=CacheConfig(num_blocks=BLOCKS), speculative=speculative)
    engine, answers = LLMEngine(model, config, records.append), []
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0))
        tokens: list[int] = []
        while engine.has_unfinished:
            for out in engine.step():
                tokens += out.token_ids
        answers.append(tokens)
    return answers, records


def bench_speculation(
    model_name: str, speculative: SpeculativeConfig, *, rounds: int = 3, max_tokens: int = 64, threads: int | None = None
) -> dict[str, Any]:
    """A row a kind of text. speed_up: of whole answers, prompts included; plain and speculative in turns, the median round.

    Goals are set for SmolLM2 with as many n-gram guesses as pay.
    """
    threads = num_cores() if threads is None else threads
    model = load_model(model_name, backend=get_backend(threads=threads))
    kinds = {kind: _kind(model, texts, speculative, rounds, max_tokens) for kind, texts in PROMPTS.items()}
    goals = _goals(kinds) if (model_name, speculative.method, speculative.adaptive) == ("smollm2", "ngram", True) else []
    return {
        "stamp": stamp(), "model": model_name, "threads": threads, "speculative": asdict(speculative),
        "max_tokens": max_tokens, "kinds": kinds, "goals": [goal.document() for goal in goals],
    }  # fmt: skip


def _goals(kinds: dict[str, dict[str, Any]]) -> list[Goal]:
    bounds = {kind: FASTER if kind == SUITED else NO_SLOWER for kind in kinds}
    speeds = [Goal(name=f"{kind}: speed-up", value=kinds[kind]["speed_up"], bound=bound) for kind, bound in bounds.items()]
    return [*speeds, Goal(name=f"{SUITED}: tokens a pass", value=kinds[SUITED]["tokens_per_pass"], bound=TOKENS)]


def _kind(
    model: LlamaModel, texts: Sequence[str], speculative: SpeculativeConfig, rounds: int, max_tokens: int
) -> dict[str, Any]:
    prompts = prompts_of(model, texts)
    plain, _ = generate(model, prompts, SpeculativeConfig(), max_tokens)
    answers, records = generate(model, prompts, speculative, max_tokens)

    def timed(config: SpeculativeConfig) -> Callable[[], list[float]]:
        def sample() -> list[float]:
            begun = time.perf_counter()
            generate(model, prompts, config, max_tokens)
            return [time.perf_counter() - begun]

        return sample

    run = alternate({"plain": timed(SpeculativeConfig()), "speculative": timed(speculative)}, rounds=rounds, tries=1)
    counts = Counts.of(records)
    return asdict(counts) | {
        "acceptance": counts.acceptance, "tokens_per_pass": counts.tokens_per_pass, "same_answers": answers == plain,
        "speed_up": run.ratio("plain", "speculative"), "run": run.document(),
    }  # fmt: skip
