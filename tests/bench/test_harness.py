"""Contenders in turns, medians of ratios, quiet runs: on samples whose times are given, so that no clock decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from labcore.bench import harness
from labcore.bench.harness import Goal, Timing, alternate, exit_code, timed
from labcore.bench.timing import Load
from labcore.core.errors import InvalidConfig


def given(times: list[float]) -> Callable[[], list[float]]:
    left: Iterator[float] = iter(times)
    return lambda: [next(left)]


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    """The machine slows down threefold meanwhile: medians of each side would not see which rounds belong together."""
    comparison = alternate({"a": given([1, 2, 3]), "b": given([2, 4, 9])}, rounds=3, tries=1)
    assert comparison.ratio("b", "a") == 2
    assert comparison.ratio("a", "b") == 0.5


def test_contenders_take_turns_and_the_order_alternates() -> None:
    order: list[str] = []

    def sample(name: str) -> Callable[[], list[float]]:
        return lambda: [float(not order.append(name))]

    alternate({name: sample(name) for name in "abc"}, rounds=3, tries=1)
    assert "".join(order) == "abc" + "cba" + "abc"


def test_a_timing_tells_all_calls_and_the_rounds() -> None:
    timing = Timing.of([[1.0] * 99 + [50.0], [3.0, 3.0, 3.0]])
    assert (timing.p50, timing.best, timing.rounds) == (1.0, 1.0, (1.0, 3.0))
    assert timing.p99 == 3.0
    assert timing.spread == (2.5 - 1.5) / 2
    assert Timing.of([[1.0, 2.0], [4.0]]).p99 == 4.0


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Load]:
    """The load of each run to come; runs take them from the front."""
    coming: list[Load] = []

    class Watch(harness.LoadWatch):
        def load(self) -> Load:
            return coming.pop(0)

    monkeypatch.setattr(harness, "LoadWatch", Watch)
    return coming


def busy(foreign: float | None, stolen: float | None = 0.0) -> Load:
    return Load(foreign=foreign, stolen=stolen)


def test_the_first_quiet_run_counts(loads: list[Load]) -> None:
    loads += [busy(1.0), busy(0.01, 0.5), busy(0.1), busy(0.0)]
    comparison = alternate({"a": given([1, 2, 3, 4])}, rounds=1, tries=4)
    assert (comparison.tries, comparison.timings["a"].p50, len(loads)) == (3, 3.0, 1)


def test_of_runs_that_are_all_busy_the_quietest_counts(loads: list[Load]) -> None:
    loads += [busy(1.0), busy(0.4), busy(0.8)]
    comparison = alternate({"a": given([1, 2, 3])}, rounds=1, tries=3)
    assert (comparison.tries, comparison.timings["a"].p50, comparison.load.foreign) == (2, 2.0, 0.4)


def test_where_the_system_does_not_tell_one_run_is_all(loads: list[Load]) -> None:
    loads += [busy(None, None)]
    comparison = alternate({"a": given([1])}, rounds=1, tries=3)
    assert comparison.tries == 1 and comparison.document()["foreign_cores"] is None


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"tries": 0}])
def test_nothing_to_measure_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig, match="expected one or more of each"):
        alternate({"a": given([1])}, **wrong)
    with pytest.raises(InvalidConfig, match="0 contenders"):
        alternate({})


def test_a_timed_sample_warms_up_and_is_bounded() -> None:
    calls: list[int] = []
    times = timed(lambda: calls.append(1), seconds=60.0, most=5)()
    assert len(times) == 5 and len(calls) > 5 and min(times) >= 0
    assert len(timed(lambda: calls.append(1), seconds=0.0)()) == 1


def test_a_goal_is_met_from_its_own_side_only() -> None:
    assert Goal(name="x", value=1.3, bound=1.3).met and not Goal(name="x", value=1.29, bound=1.3).met
    assert Goal(name="x", value=0.3, bound=0.3, at_least=False).met
    assert not Goal(name="x", value=0.31, bound=0.3, at_least=False).met
    assert not Goal(name="x", value=float("nan"), bound=1.0).met
    assert not Goal(name="x", value=None, bound=0.0, why="no torch").met


def test_check_fails_on_a_goal_that_is_missed_or_was_not_measured() -> None:
    met, missed = Goal(name="a", value=2.0, bound=1.0), Goal(name="b", value=None, bound=1.0, why="absent")
    assert exit_code({"goals": [met.document()]}, check=True) == 0
    assert exit_code({"goals": [met.document(), missed.document()]}, check=True) == 1
    assert exit_code({"goals": [missed.document()]}, check=False) == 0
