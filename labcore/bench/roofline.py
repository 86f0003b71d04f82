"""The roofline of this machine as a picture: two roofs, and a point where each operator lies (Williams et al. 2009).

To the left memory limits, to the right arithmetic; an operator's distance from the roof above it is what is left to gain.

    >>> figure = draw(ceilings.document(), [("rms_norm", 0.5, 9e9)])       # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

POINT = tuple[str, float, float]  # name, operations per byte, operations per second


def draw(ceilings: dict[str, Any], points: Iterable[POINT]) -> Figure:
    """ceilings: of `Ceilings.document`. Operators that compute nothing have no place in the picture and are left out."""
    shown = [point for point in points if point[1] > 0]
    figure, axes = plt.subplots(figsize=(7.2, 4.0), layout="constrained")
    axes.set(xscale="log", yscale="log")
    roofs = [("float32", ceilings["multiply_adds"]), ("int8", ceilings["int8_dots"])]
    corner = max(peak or 0.0 for _, peak in roofs) / ceilings["read"]  # operations per byte where the highest roof runs level
    intensities = [corner, *(intensity for _, intensity, _ in shown)]
    x = np.geomspace(min(intensities) / 3, max(intensities) * 3, 200)
    for colour, (name, peak) in zip(("#0072b2", "#d55e00"), roofs, strict=True):
        if peak:
            axes.plot(x, np.minimum(peak, ceilings["read"] * x) / 1e9, color=colour, label=f"{name}: {peak / 1e9:.0f} G/s")
    markers = "os^vD<*P>hXp"
    for i, (name, intensity, rate) in enumerate(shown):  # hollow: rungs of one operator lie close above one another
        marker = markers[i % len(markers)]
        axes.plot(intensity, rate / 1e9, marker, color="#222222", mfc="none", ms=7.5, mew=1.2, label=name, ls="none")
    axes.set_xlabel("operations per byte of memory")
    axes.set_ylabel("10⁹ operations per second")
    axes.set_title(f"slope: {ceilings['read'] / 1e9:.1f} GB/s, {ceilings['threads']} threads", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=7.5, frameon=False, loc="outside right upper")  # where no point can lie
    return figure


def points_of(document: dict[str, Any]) -> list[POINT]:
    """The points of the fastest backend, from what `bench_kernels` returned."""
    backend = next(status["name"] for status in document["backends"] if status["available"])
    return [(r["operator"], r["intensity"], r["flops_per_second"]) for r in document["rows"] if r["backend"] == backend]
