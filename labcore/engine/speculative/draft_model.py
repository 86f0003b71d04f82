"""Guesses by a smaller model with the same vocabulary, which keeps up with every sequence in a pool of its own.

Its pool has the blocks of the model's pool: the same tables, the same copies, so all that the scheduler books holds for both. In
each step it first computes what the model is about to compute, then goes on token by token, and computes the last guess too:
wherever the model's K and V are right, so are its own, and a prefix found in the cache is known to both.
"""

from __future__ import annotations

from labcore.core.config import CacheConfig
from labcore.core.errors import InvalidConfig
from labcore.core.speculative_config import SpeculativeConfig
from labcore.engine.model_runner import ModelRunner, Piece
from labcore.engine.plan import NO_DRAFT, Draft, SchedulerOutput
from labcore.engine.sampler import GUESS, Place
from labcore.engine.sequence import Sequence
from labcore.engine.speculative.draft_length import draft_length, followed
from labcore.model.llama import LlamaModel


class DraftModelProposer:
    """A `Proposer`. Greedy requests get its best tokens; others tokens drawn from its law, under the request's own rules."""

    def __init__(self, config: SpeculativeConfig, draft: LlamaModel, target: LlamaModel, cache: CacheConfig) -> None:
        for name in ("vocab_size", "max_model_len"):
            own, wanted = getattr(draft.config, name), getattr(target.config, name)
            if own < wanted if name == "max_model_len" else own != wanted:
                raise InvalidConfig(f"the draft model's {name} is {own}; the model's is {wanted}")
        self._config = config
        self._runner = ModelRunner(draft, cache)
        self._cost = draft.config.num_parameters / target.config.num_parameters

    def length(self, sequence: Sequence, num_running: int) -> int:
        most = self._config.num_draft_tokens
        if not self._config.adaptive:
            return most
        return draft_length(sequence.acceptance, most, 1 if self.whole(sequence) else num_running, self._cost)

    def whole(self, sequence: Sequence) -> bool:
        return not sequence.params.greedy

    def learn(self, sequence: Sequence, num_draft: int, num_accepted: int) -> None:
        sequence.acceptance = followed(sequence.acceptance, num_draft, num_accepted)

    def propose(self, output: SchedulerOutput) -> list[Draft]:
        runner, shares = self._runner, output.scheduled
        runner.copy_blocks(output.copies)
        known = [Piece.of(share.sequence, share.num_tokens - share.num_draft, rows=bool(share.num_draft)) for share in shares]
        logits = runner.forward(known)
        tokens: list[list[int]] = [[] for _ in shares]
        laws: list[list[object]] = [[] for _ in shares]
        active = [i for i, share in enumerate(shares) if share.num_draft]
        while active:
            places = [Place.behind(shares[i].sequence, row, tokens[i], GUESS) for row, i in enumerate(active)]
            for i, (token, law) in zip(active, runner.sampler.guesses(logits, places), strict=True):
                tokens[i].append(token)
                laws[i] += [] if law is None else [law]
            going_on = [i for i in active if len(tokens[i]) < shares[i].num_draft]
            logits = runner.forward(
                [Piece.behind(shares[i].sequence, tokens[i], rows=i in going_on) for i in active]
            )  # the last guess too: its K and V must be there if it stands
            active = going_on
        return [Draft(tuple(t), tuple(p)) if t else NO_DRAFT for t, p in zip(tokens, laws, strict=True)]
