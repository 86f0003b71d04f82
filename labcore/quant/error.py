"""How far an approximation is off: of weights, relative to their size; of a model's logits, as laws of the next token.

Two models that differ by rounding may write different texts from the first near tie on, so texts are no measure. The laws
are: mean KL(exact || approximate) in nats says how many nats a token loses that is drawn from the exact law.

    >>> logit_error(np.float32([[0, 1]]), np.float32([[0, 1]]))
    LogitError(mean_kl=0.0, max_kl=0.0, max_logit_error=0.0, same_best=1.0)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labcore.core.errors import ShapeError

ROWS = 64  # compared at a time, in float64


@dataclass(frozen=True, slots=True)
class LogitError:
    """Over rows of logits. KL in nats; same_best: the share of rows whose largest logit belongs to the same token."""

    mean_kl: float
    max_kl: float
    max_logit_error: float
    same_best: float


def relative_error(exact: np.ndarray, approximate: np.ndarray) -> float:
    """Root mean square of the difference over that of the exact numbers; 0 where both are all zeros."""
    _check_shapes(exact, approximate)
    exact = exact.astype(np.float64)
    size, off = np.linalg.norm(exact), np.linalg.norm(approximate - exact)
    return float(off / size) if size else float(off and np.inf)


def logit_error(exact: np.ndarray, approximate: np.ndarray) -> LogitError:
    """Compare logits (rows, vocabulary) of two models after the same tokens. ShapeError: not of one shape."""
    _check_shapes(exact, approximate)
    parts = [slice(at, at + ROWS) for at in range(0, len(exact), ROWS)]
    kl = np.concatenate([_kl(exact[part].astype(np.float64), approximate[part].astype(np.float64)) for part in parts])
    return LogitError(
        mean_kl=float(kl.mean()),
        max_kl=float(kl.max()),
        max_logit_error=max(float(np.abs(exact[part] - approximate[part]).max()) for part in parts),
        same_best=float((exact.argmax(axis=-1) == approximate.argmax(axis=-1)).mean()),
    )


def _kl(exact: np.ndarray, approximate: np.ndarray) -> np.ndarray:
    log_p, log_q = _log_softmax(exact), _log_softmax(approximate)
    return np.maximum((np.exp(log_p) * (log_p - log_q)).sum(axis=-1), 0.0)  # rounding may leave -1e-17


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _check_shapes(exact: np.ndarray, approximate: np.ndarray) -> None:
    if exact.shape != approximate.shape:
        raise ShapeError(f"the approximation has shape {approximate.shape}; expected {exact.shape}")
