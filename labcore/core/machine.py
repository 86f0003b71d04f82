"""What the standard library knows of this machine.

>>> num_cores() >= 1
True
"""

from __future__ import annotations

import os


def num_cores() -> int:
    """Cores that this process may use: a container or `taskset` may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
