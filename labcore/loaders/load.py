"""One way in: a model's name, or the path of a file or folder, to a checkpoint.

>>> load_checkpoint("lab").config.hidden_size
256
"""

from __future__ import annotations

import os
from pathlib import Path

from labcore.core.config import ModelConfig
from labcore.core.errors import InvalidCheckpoint
from labcore.loaders import zoo
from labcore.loaders.checkpoint import Checkpoint
from labcore.loaders.lab import lab_checkpoint
from labcore.loaders.llama_gguf import load_llama
from labcore.loaders.llama_safetensors import load_llama_folder, weights_path


def load_checkpoint(name_or_path: str | os.PathLike[str]) -> Checkpoint:
    """Load a named model (`lab`, `lab-moe`, `smollm2`), a Hugging Face folder, the safetensors or index in one, or a GGUF file.

    A name goes before a file that is called the same.
    FetchFailed: a named model that is not in the cache yet. InvalidCheckpoint: neither a name nor what can be read.
    """
    name = os.fspath(name_or_path)
    if name in zoo.SEEDED:
        return lab_checkpoint(config=ModelConfig.lab_moe() if name == "lab-moe" else ModelConfig.lab())
    if name in zoo.FILES:
        return load_llama(zoo.model_path(name), name)
    if os.path.isdir(name):
        return load_llama_folder(name)
    if not os.path.isfile(name):  # Path.is_file raises on a name that is too long
        known = ", ".join(zoo.known_models())
        raise InvalidCheckpoint(
            f"{name!r:.80} is neither a model nor a file; expected {known}, a Hugging Face folder or a GGUF file"
        )
    path = Path(name)
    if not name.endswith((".safetensors", ".safetensors.index.json")):
        return load_llama(path)
    whole = weights_path(path.parent)
    if not os.path.samefile(path, whole):
        raise InvalidCheckpoint(f"{path}: is not all of its model's weights, which are {whole.name}; load the folder")
    return load_llama_folder(path.parent)
