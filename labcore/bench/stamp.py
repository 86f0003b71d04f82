"""The stamp of a measurement: on which machine, with which versions, on which day.

>>> stamp()["cores"] >= 1
True
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from labcore.core.machine import num_cores, processor
from labcore.kernels.registry import get_backend

PACKAGES = ("labcore", "numpy")


def installed(package: str) -> str | None:
    """Its version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def stamp(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Processor, cores, system, versions, the fastest backend and its instruction set, day. packages: named besides ours."""
    backend = get_backend()
    return {
        "processor": processor(),
        "cores": num_cores(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in (*PACKAGES, *packages)},
        "backend": " ".join(filter(None, [backend.name, getattr(backend, "isa", None)])),
        "date": date.today().isoformat(),
    }


def sentence(document: dict[str, Any]) -> str:
    """The stamp in a line."""
    versions = ", ".join(f"{name} {value}" for name, value in document["versions"].items() if value and name != "labcore")
    return (
        f"{document['processor']}, {document['cores']} cores, {document['system']}; "
        f"Python {document['python']}, {versions}; backend {document['backend']}; {document['date']}"
    )
