"""The live control of bits and outliers: it follows its settings, keeps the outlier out of the picture, and has one itself."""

from __future__ import annotations

import re

import numpy as np
import pytest

from labcore.widgets.live_quantization import OUTLIER, LiveQuantization

ROW = np.random.default_rng(0).standard_normal(64).astype(np.float32)


def said(live: LiveQuantization) -> tuple[int, int, float]:
    """Levels in use, levels there are, error in percent."""
    levels, of, error = re.search(r"(\d+) of (\d+) levels in use, error ([\d.]+)%", live.out.value).groups()  # type: ignore[union-attr]
    return int(levels), int(of), float(error)


def test_bits_and_outlier_and_who_shares_change_the_error() -> None:
    live = LiveQuantization(ROW)
    levels, of, error = said(live)
    assert of == 15 and live.out.value.count("<circle") == 2 * 63
    live.bits.value = 8
    fine = said(live)
    assert fine[1] == 255 and fine[2] < error / 10
    live.outlier.value = 50
    coarse = said(live)
    assert coarse[0] < levels and coarse[2] > 5 * fine[2]
    live.shared.value = "32 weights"  # the other block is as it was
    assert fine[2] < said(live)[2] < coarse[2]


def test_what_it_says_is_the_error_of_the_others() -> None:
    live = LiveQuantization(ROW, bits=5, outlier=3)
    row = ROW.copy()
    row[OUTLIER] = 3 * np.abs(ROW).max()
    step = np.abs(row).max() / 15
    others = np.delete(row, OUTLIER)
    off = np.delete(np.rint(row / step) * step, OUTLIER) - others
    assert said(live)[2] == pytest.approx(100 * np.linalg.norm(off) / np.linalg.norm(others), abs=0.05)


def test_without_a_kernel_a_picture_stands_in_its_place() -> None:
    live = LiveQuantization(ROW)
    picture = live._repr_mimebundle_()["text/html"]
    assert "<svg" in picture and "one scale for" in picture and "aria-label" in picture
    assert repr(live) == "LiveQuantization()"
