"""The check that grades a test: by the faults that it finds, and never by hanging on one of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from labcore.lab.exercises import liveness
from labcore.lab.exercises.liveness import check_liveness, check_return
from labcore.lab.faults import FAULTS
from labcore.lab.oracle import TOKEN, drive, sequence

Make = Callable[..., Any]


def good(make: Make, watched: bool = True, shares: bool = True, waste: bool = True) -> None:
    """Bounded, in many pools, with and without a cache; looks at every step, every share and at the work in all."""
    for cache, blocks in product(("none", "radix"), range(8, 20)):
        scheduler, records = make(
            num_blocks=blocks, block_size=4, prefix_cache=cache, max_chunk_tokens=4, watermark_blocks=0
        )
        for name in "abc":
            scheduler.add(sequence(name, 16, 12))
        for _ in range(300):
            if scheduler.has_unfinished:
                plan = scheduler.schedule()
                scheduler.update(plan, [[TOKEN] * share.num_samples for share in plan.scheduled])
                if watched:
                    assert plan.scheduled
                    assert not {id(s) for s in plan.preempted} & {id(share.sequence) for share in plan.scheduled}
        assert not scheduler.has_unfinished
        if shares:
            assert all(share.num_tokens for record in records for share in record.scheduled)
        if waste:
            assert sum(record.num_tokens for record in records) <= 2 * 3 * 27


def test_a_test_that_finds_all_is_right() -> None:
    verdict = check_liveness(good)
    assert verdict.right and verdict.sentence == "right: it passes on the engine and finds 7 of 7 faults"


@pytest.mark.parametrize(
    ("left_out", "survivors"),
    [
        ({"shares": False}, ["no cap on the hit"]),
        ({"waste": False}, ["admission on the next chunk"]),
        ({"waste": False, "shares": False}, ["admission on the next chunk", "no cap on the hit"]),
        ({"watched": False}, ["cache that never yields", "victim already scheduled"]),
    ],
)
def test_a_test_that_finds_some_is_told_which_it_does_not(left_out: dict[str, bool], survivors: list[str]) -> None:
    verdict = check_liveness(lambda make: good(make, **left_out))
    assert not verdict.right
    found = len(FAULTS) - len(survivors)
    assert verdict.sentence.endswith(f"finds {found} of 7 faults; not found: {', '.join(survivors)}")


def empty(make: Make) -> None:
    return None


def makes_and_leaves(make: Make) -> None:
    make(num_blocks=8)


@pytest.mark.parametrize("test", [empty, makes_and_leaves])
def test_an_empty_test_is_no_answer(test: Callable[[Make], None]) -> None:
    verdict = check_liveness(test)
    assert not verdict.right and verdict.sentence.startswith("not answered yet: your test makes no step of a scheduler")


def fails(make: Make) -> None:
    raise AssertionError("always")


def is_too_strict(make: Make) -> None:
    scheduler, _ = make(num_blocks=8, block_size=4, watermark_blocks=0)
    for name in "abc":
        scheduler.add(sequence(name, 16, 12))
    drive(scheduler)
    assert scheduler.num_preemptions == 0, "nobody is preempted"


@pytest.mark.parametrize(("test", "said"), [(fails, "(AssertionError: always)"), (is_too_strict, "nobody is preempted")])
def test_a_test_that_fails_on_the_engine_is_told_so(test: Callable[[Make], None], said: str) -> None:
    verdict = check_liveness(test)
    assert not verdict.right and verdict.sentence.startswith("wrong: your test fails on the engine itself")
    assert said in verdict.sentence


def looks_at_nothing(make: Make) -> None:
    scheduler, _ = make(num_blocks=64)
    scheduler.add(sequence("a", 16, 4))
    for _ in range(10):
        plan = scheduler.schedule()
        scheduler.update(plan, [[TOKEN] * share.num_samples for share in plan.scheduled])


def test_a_test_that_looks_at_nothing_finds_nothing() -> None:
    sentence = check_liveness(looks_at_nothing).sentence
    assert "finds 0 of 7 faults; not found: " in sentence and all(name in sentence for name in FAULTS)


def has_no_bound(make: Make) -> None:
    """As most people write it at first."""
    for blocks in range(8, 20):
        scheduler, _ = make(num_blocks=blocks, block_size=4, prefix_cache="none", max_chunk_tokens=4, watermark_blocks=0)
        for name in "abc":
            scheduler.add(sequence(name, 16, 12))
        while scheduler.has_unfinished:
            plan = scheduler.schedule()
            scheduler.update(plan, [[TOKEN] * share.num_samples for share in plan.scheduled])


def swallows(make: Make) -> None:
    """`except Exception` in a loop must not hold the grader up."""
    scheduler, _ = make(num_blocks=8, block_size=4)
    while True:
        try:
            scheduler.update(scheduler.schedule(), [])
        except Exception:
            continue


def test_a_test_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "MOST_STEPS", 3000)
    sentence = check_liveness(has_no_bound).sentence
    assert "it never ends, which tells nobody anything, on: admission without reservation, spin on empty steps" in sentence
    sentence = check_liveness(swallows).sentence
    assert sentence == "wrong: on the engine your test made more than 3,000 steps, and was cut off"


def comes_back(num_computed: int, block_size: int, num_evicted: int) -> int:
    return num_computed + 1 - max(num_computed // block_size - num_evicted, 0) * block_size


def test_the_cost_of_coming_back() -> None:
    assert check_return(comes_back).right
    wrong: dict[Callable[[int, int, int], object], str] = {
        lambda c, b, e: c: "your function says 40, the engine computed 9 tokens",
        lambda c, b, e: comes_back(c, b, e) - 1: "your function says 8, the engine computed 9 tokens",
        lambda c, b, e: comes_back(c, b, 0): "num_evicted=3",
        lambda c, b, e: None: "not answered yet",
    }
    for answer, said in wrong.items():
        verdict = check_return(answer)
        assert not verdict.right and said in verdict.sentence
