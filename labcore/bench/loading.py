"""How long a model takes to be ready, and how much memory it then holds, in a process of its own.

The growth is of the resident set over that of the bare imports; the KV pool is not part of it (it is taken as tokens arrive).
Pages of the mapped file count as long as they are resident. Run as a module it prints one line of JSON:

    $ python -m labcore.bench.loading smollm2 packed
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from labcore.bench.timing import stopwatch
from labcore.core.errors import LabError
from labcore.loaders import zoo
from labcore.model.weights import load_model


def resident_bytes() -> int | None:
    """The resident set of this process; None where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)


def model_file_bytes(name: str) -> int | None:
    """Bytes of the model's file or files; None where it is made from a seed."""
    if name in zoo.SEEDED:
        return None
    path = zoo.model_path(name) if name in zoo.FILES else Path(name)
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def measure_loading(name: str, weights: str) -> dict[str, Any]:
    """seconds, resident growth in bytes, bytes of the file."""
    before = resident_bytes()
    with stopwatch() as watch:
        model = load_model(name, weights=weights)
    after = resident_bytes()
    del model
    growth = None if before is None or after is None else after - before
    return {"seconds": watch.seconds, "resident_growth": growth, "file_bytes": model_file_bytes(name)}


def loading_report(name: str, weights: str) -> dict[str, Any]:
    """`measure_loading` in a fresh process. Raises LabError with what it said, if it fails."""
    command = [sys.executable, "-m", "labcore.bench.loading", name, weights]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise LabError(f"loading {name} in a process of its own failed: {(result.stderr.strip().splitlines() or ['?'])[-1]}")
    return dict(json.loads(result.stdout))


if __name__ == "__main__":
    print(json.dumps(measure_loading(*sys.argv[1:3])))
