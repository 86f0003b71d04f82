"""Loading models that are damaged: it gives InvalidCheckpoint or a whole model, and costs no more than the files justify."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.load import load_checkpoint

MEMORY, SECONDS = 8 << 20, 5.0  # for models of 10 to 100 KB; a load takes some milliseconds


def loads(source: Path) -> bool:
    """Whether the file or folder loads, and all its tensors with it; any error but InvalidCheckpoint is the test's."""
    try:
        checkpoint = load_checkpoint(source)
    except InvalidCheckpoint as error:
        assert str(source) in str(error) and "\n" not in str(error) and len(str(error)) < 1000
        return False
    assert all(np.shape(tensor) == checkpoint.shapes[name] for name, tensor in checkpoint.tensors.items())
    return True


def load_all(path: Path, damaged: Iterable[bytes], source: Path | None = None) -> list[bool]:
    """Load `source` (the file itself, if not given) with each of these as the file `path`.

    Bounds processor time (other work does not count) and, of every fifth, memory.
    """
    outcomes = []
    for index, data in enumerate(damaged):
        path.write_bytes(data)
        began = time.process_time()
        if index % 5:
            outcomes.append(loads(source or path))
        else:
            tracemalloc.start()
            outcomes.append(loads(source or path))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < MEMORY
        assert time.process_time() - began < SECONDS
    return outcomes
