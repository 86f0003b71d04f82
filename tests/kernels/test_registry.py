"""Backends by name, with a reason for each that cannot run; the instruction set by environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import ISAS

from labcore.core.errors import BackendUnavailable, InvalidConfig
from labcore.kernels import native
from labcore.kernels.registry import backend_statuses, get_backend


def test_an_unknown_backend_names_the_known_ones() -> None:
    with pytest.raises(BackendUnavailable, match="unknown backend 'cuda'; known: native, torch, numpy, reference, triton"):
        get_backend("cuda")


def test_without_kernels_the_reason_is_told_and_numpy_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "labcore.kernels._nanobind", None)
    status = {s.name: s for s in backend_statuses()}
    assert not status["native"].available
    assert "the C++ kernels are not built" in status["native"].reason
    assert get_backend().name == "numpy"
    assert native.runnable_isas() == []


@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_forces_an_instruction_set(isa: str) -> None:
    code = "from labcore.kernels.registry import get_backend; print(get_backend('native').isa)"
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LABCORE_ISA": isa}, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == isa


@pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")
def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABCORE_ISA", "avx9000")
    for name in ("native", None):  # asked for wrongly: numpy does not quietly step in
        with pytest.raises(InvalidConfig, match=r"'avx9000' is not one this machine runs: .*plain"):
            get_backend(name)
    assert "avx9000" in {s.name: s for s in backend_statuses()}["native"].reason


@pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")
@pytest.mark.parametrize("threads", [0, -1, 100_000, 2.5])
def test_a_senseless_number_of_threads_is_refused(threads: int) -> None:
    with pytest.raises(InvalidConfig, match="threads is"):
        get_backend("native", threads=threads)
