"""The ceilings are counted in the right amounts; a machine that is busy is asked again."""

from __future__ import annotations

import numpy as np
import pytest

from labcore.bench import ceilings
from labcore.bench.ceilings import measure_ceilings
from labcore.bench.timing import Load
from labcore.kernels.native import runnable_isas

SMALL = 1 << 20


class Probes:
    """Operators that write down what they are asked to do."""

    def __init__(self) -> None:
        self.read_bytes: list[int] = []
        self.copied_bytes: list[int] = []
        self.counts: list[tuple[str, int]] = []

    def read(self, x: np.ndarray) -> float:
        self.read_bytes.append(x.nbytes)
        return 0.0

    def copy(self, out: np.ndarray, x: np.ndarray) -> None:
        self.copied_bytes.append(out.nbytes + x.nbytes)

    def multiply_adds(self, count: int) -> float:
        self.counts.append(("float32", count))
        return 0.0

    def int8_dots(self, count: int) -> int:
        self.counts.append(("int8", count))
        return 0


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Probes:
    """Native probes that take a second each, whatever they do."""
    made = Probes()

    class Backend:
        isa = "test"
        _operators = made

    monkeypatch.setattr(ceilings, "_native_probes", lambda threads: Backend())

    def rate(amount: float, call: object) -> float:
        call()  # type: ignore[operator]
        return amount

    monkeypatch.setattr(ceilings, "_rate", rate)
    return made


def test_a_rate_counts_what_its_probe_was_asked_to_do(probes: Probes) -> None:
    taken = measure_ceilings(2, SMALL, tries=1)
    assert taken.read == probes.read_bytes[0] == SMALL
    assert taken.copy == probes.copied_bytes[0] == 2 * SMALL
    counts = dict(probes.counts)
    assert (taken.multiply_adds, taken.int8_dots) == (2 * counts["float32"], 2 * counts["int8"])  # two operations each
    assert (taken.threads, taken.measured_by) == (2, "native test")


@pytest.mark.parametrize(("loads", "times"), [([1.0, 1.0, 0.0, 0.0], 3), ([1.0] * 9, 4), ([0.0], 1)])
def test_a_busy_machine_is_asked_again(probes: Probes, monkeypatch: pytest.MonkeyPatch, loads: list[float], times: int) -> None:
    left = iter(loads)
    monkeypatch.setattr(ceilings.LoadWatch, "load", lambda self: Load(foreign=next(left), stolen=0.0))
    measure_ceilings(2, SMALL, tries=4)
    assert len(probes.read_bytes) == times


def test_without_native_kernels_numpy_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_native_probes", lambda threads: None)
    taken = measure_ceilings(2, SMALL, tries=1)
    assert taken.measured_by == "numpy" and taken.int8_dots is None
    assert min(taken.read, taken.copy, taken.multiply_adds) > 0
    assert taken.floor(int8_ops=taken.multiply_adds) == 1  # the float32 rate stands in


@pytest.mark.skipif(not runnable_isas(), reason="the native kernels are not built")
def test_the_native_probes_are_there_and_do_what_they_say() -> None:
    backend = ceilings._native_probes(2)
    assert backend is not None
    operators, x = backend._operators, np.arange(1 << 16, dtype=np.float32) % 7
    out = np.zeros_like(x)
    operators.copy(out, x)
    assert np.array_equal(out, x)
    assert operators.read(x) == x.sum(dtype=np.float64)
    assert np.isfinite(operators.multiply_adds(1 << 16)) and isinstance(operators.int8_dots(1 << 16), int)
