"""What a call costs is measured for each door that is there; which of them is fastest is no matter of a test."""

from __future__ import annotations

import pytest
from support import ISAS

from labcore.bench import calls
from labcore.core.errors import BackendUnavailable


@pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")
def test_every_door_is_measured() -> None:
    rows = {row.name: row for row in calls.call_overheads(rounds=2)}
    assert list(rows) == ["Python function", "nanobind", "pybind11", "ctypes", "ctypes, arrays prepared", "torch"]
    assert rows["torch"].empty_ns is None
    assert all(row.arrays_ns > 0 for row in rows.values())


def test_doors_that_are_not_built_and_torch_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise BackendUnavailable("the C++ kernels are not built")

    monkeypatch.setattr(calls, "load", missing)
    monkeypatch.setattr(calls, "torch", None)
    assert [row.name for row in calls.call_overheads(rounds=2)] == ["Python function"]
