"""What the standard library knows of this machine.

>>> num_cores() >= 1
True
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path


def num_cores() -> int:
    """Cores that this process may use: a container or `taskset` may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name, as the system gives it."""
    if sys.platform == "linux":
        try:
            lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
