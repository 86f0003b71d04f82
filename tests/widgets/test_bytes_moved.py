"""The replay of bytes moved: its sums are those of the arrays, and of the benchmark's floor."""

from __future__ import annotations

import pytest

from labcore.bench.cases import cases
from labcore.widgets.bytes_moved import PASSES, BytesMoved


@pytest.mark.parametrize(("rows", "dim"), [(1, 64), (5, 128)])
def test_the_sums_are_those_of_the_arrays(rows: int, dim: int) -> None:
    replay = BytesMoved(rows, dim)
    assert len(replay.rows) == len(replay.says) == len(PASSES)
    last = {row[0]: int(row[-1].replace(",", "")) for row in replay.rows}
    assert last == {"unfused": 7 * 4 * rows * dim, "fused": cases(tokens=rows, hidden=dim)["rms_norm"].bytes}
    assert replay.data["steps"][-1][4:] == list(last.values())


def test_a_pass_reads_what_was_written_before() -> None:
    there = {"unfused": {"x"}, "fused": {"x"}}
    for form, _, reads, writes, _ in PASSES:
        assert reads.split(" ")[0] in there[form]
        there[form] |= {writes} - {""}
    assert all("out" in arrays for arrays in there.values())
