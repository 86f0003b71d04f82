"""A model whose numbers are no numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labcore.loaders.lab import lab_checkpoint
from labcore.loaders.safetensors_writer import write_safetensors


@pytest.fixture(scope="session")
def nan_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab model with a matrix of NaN, as a folder."""
    folder, lab = tmp_path_factory.mktemp("models") / "nan", lab_checkpoint()
    name = "model.layers.2.mlp.down_proj.weight"
    write_safetensors(replace(lab, tensors={**lab.tensors, name: np.full_like(lab.tensors[name], np.nan)}), folder)
    return folder
