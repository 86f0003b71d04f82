"""Errors of weights and of logits: known values; KL against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labcore.core.errors import ShapeError
from labcore.quant.error import logit_error, relative_error


def test_relative_error() -> None:
    exact = np.float32([[3, 4], [0, 0]])
    assert relative_error(exact, exact) == 0
    assert relative_error(exact, np.float32([[3, 4], [0, 1]])) == pytest.approx(0.2, rel=1e-12)
    assert relative_error(exact * 0, exact * 0) == 0 and relative_error(exact * 0, exact) == np.inf


def test_kl_is_torch_s() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((7, 50)) * 5
    approximate = exact + rng.standard_normal((7, 50)) * 0.3
    got = logit_error(exact, approximate)
    log_p, log_q = (torch.log_softmax(torch.from_numpy(x), -1) for x in (exact, approximate))
    kl = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    assert got.mean_kl == pytest.approx(float(kl.mean()), rel=1e-12) and got.max_kl == pytest.approx(float(kl.max()), rel=1e-12)
    assert got.max_logit_error == np.abs(exact - approximate).max()
    assert got.same_best == (exact.argmax(-1) == approximate.argmax(-1)).mean()


def test_what_softmax_does_not_see_is_no_kl() -> None:
    logits = np.float32([[1, 2, 3], [1e4, 0, -1e4]])
    error = logit_error(logits, logits + np.float32([[7], [0]]))
    assert error.mean_kl < 1e-12 and error.max_logit_error == 7 and error.same_best == 1


def test_shapes_must_be_the_same() -> None:
    for measure in (relative_error, logit_error):
        with pytest.raises(ShapeError, match=r"has shape \(3,\); expected \(2, 3\)"):
            measure(np.zeros((2, 3)), np.zeros(3))
