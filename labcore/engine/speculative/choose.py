"""The proposer that a config names."""

from __future__ import annotations

from labcore.core.config import EngineConfig
from labcore.core.errors import InvalidConfig
from labcore.engine.proposer import NoProposer, Proposer
from labcore.engine.speculative.draft_model import DraftModelProposer
from labcore.engine.speculative.ngram import NGramProposer
from labcore.model.llama import LlamaModel


def proposer_of(config: EngineConfig, model: LlamaModel, draft_model: LlamaModel | None = None) -> Proposer:
    """Raises InvalidConfig where a draft model is given and not asked for, or does not go with the model."""
    speculative = config.speculative
    if draft_model is not None and speculative.method != "draft":
        raise InvalidConfig(f'a draft model is given, and speculative.method is {speculative.method!r}; expected "draft"')
    if speculative.method == "ngram":
        return NGramProposer(speculative)
    if speculative.method == "draft":
        return DraftModelProposer(speculative, draft_model or model.first_layers(speculative.draft_layers), model, config.cache)
    return NoProposer()
