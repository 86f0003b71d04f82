"""What else ran: from files as Linux writes them, and from this machine where it tells."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labcore.bench.timing import LoadWatch, cpu_times, duration, process_seconds, stopwatch

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def test_busy_and_stolen_are_read_apart(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 500 6 7 80 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    times = cpu_times(tmp_path)
    assert times is not None
    assert (times.busy * TICKS, times.stolen * TICKS) == (100 + 20 + 30 + 6 + 7, 80)


@pytest.mark.parametrize("text", ["", "cpu  0 0 0 0 0 0 0 0 0 0\n", "cpu 1 2\n", "intr 5\n"])
def test_a_system_that_does_not_tell_gives_none(tmp_path: Path, text: str) -> None:
    assert cpu_times(tmp_path) is None
    (tmp_path / "stat").write_text(text)
    assert cpu_times(tmp_path) is None


def test_a_process_name_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) b (c) S 1 7 7 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 1 0 1 1 1")
    assert process_seconds(7, tmp_path) * TICKS == pytest.approx(300)
    assert process_seconds(8, tmp_path) == 0.0


@pytest.mark.skipif(cpu_times() is None, reason="this system does not tell how busy its cores are")
def test_another_process_is_foreign_unless_it_is_named() -> None:
    """A child that burns a core for a while: it is foreign load, and it is not when it is our own."""
    code = "import sys\nsys.stdin.readline()\nx = 0\nfor i in range(10**7): x += i\nprint(x, flush=True)\nsys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        named, unnamed = LoadWatch(), LoadWatch()
        with named.own(child.pid):
            child.stdin.write("\n")
            child.stdin.flush()
            child.stdout.readline()
        used = process_seconds(child.pid)
        difference = (unnamed.load().foreign or 0.0) - (named.load().foreign or 0.0)
        child.stdin.write("\n")
    assert used > 0.1
    assert difference > 0


def test_a_duration_has_three_digits_and_a_unit() -> None:
    assert [duration(x) for x in (2.5, 0.00981, 3.2e-5, 4e-8)] == ["2.5 s", "9.81 ms", "32 µs", "40 ns"]


def test_a_stopwatch_measures_its_block() -> None:
    with stopwatch() as watch:
        time.sleep(0.01)
    assert watch.seconds >= 0.01
