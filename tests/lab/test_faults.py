"""Each of the faults that the book breaks things with does its damage, and the rules that every test here leans on notice it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import pytest

from labcore.engine.plan import Sampled, SchedulerOutput
from labcore.kernels.registry import get_backend
from labcore.lab.faults import FAULTS, SOUND, CopyForgetsV, Fault
from labcore.lab.matrix import Broken, Setting, Watch, run_cell, truth_of, watched_step
from labcore.lab.oracle import TOKEN, sequence
from labcore.model.weights import load_model

EMPTY, COVERED = "no step is empty while a request is there", "all known tokens of who runs have blocks"
FOUND = {  # the rule that breaks first, in most of the workloads in which the fault is noticed
    "admission without reservation": COVERED,
    "cache that never yields": EMPTY,
    "admission on the next chunk": COVERED,
    "victim already scheduled": "a victim does not run",
    "no cap on the hit": "a share is one token or more",
    "lock that skips the matched node": "references = tables + cache",
    "spin on empty steps": EMPTY,
}


def workloads() -> Iterator[dict[str, Any]]:
    """Three requests of 16 + 12 tokens, in pools that hold one of them, or two, or nearly all; whole prompts and chunks."""
    for num_blocks, prefix_cache, chunk in product(range(8, 20), ("none", "radix", "hash"), (None, 4)):
        yield {"num_blocks": num_blocks, "block_size": 4, "prefix_cache": prefix_cache, "max_chunk_tokens": chunk,
               "watermark_blocks": 0}  # fmt: skip


def oracle(plan: SchedulerOutput) -> list[Sampled]:
    return [[TOKEN] * share.num_samples for share in plan.scheduled]


def first_broken(fault: Fault, workload: dict[str, Any]) -> str:
    """The rule that the fault breaks first; nothing if it is not noticed."""
    scheduler, _ = fault.scheduler(**workload)
    for name in "abc":
        scheduler.add(sequence(name, num_prompt_tokens=16, max_tokens=12))
    watch = Watch()
    try:
        for _ in range(300):
            if not scheduler.has_unfinished:
                break
            watched_step(scheduler, oracle, watch)
        watch.ended(scheduler)
    except Broken as rule:
        return str(rule)
    except (AssertionError, RuntimeError) as error:
        return f"an error: {type(error).__name__}"
    return ""


@cache
def broken(name: str) -> list[str]:
    return [rule for workload in workloads() if (rule := first_broken(FAULTS[name], workload))]


def test_nothing_breaks_on_the_engine() -> None:
    assert {first_broken(SOUND, workload) for workload in workloads()} == {""}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed_and_by_its_rule(name: str) -> None:
    rules = broken(name)
    assert max(set(rules), key=rules.count) == FOUND[name], rules


def test_every_fault_has_a_rule_that_notices_it() -> None:
    assert FOUND.keys() == FAULTS.keys()


@pytest.mark.parametrize("name", ["admission without reservation", "cache that never yields", "spin on empty steps"])
def test_what_stalls_stalls_for_ever(name: str) -> None:
    """An engine that made no step in a hundred calls will make none in a thousand: nothing changes in between."""
    for workload in workloads():
        scheduler, _ = FAULTS[name].scheduler(**workload)
        for request in "abc":
            scheduler.add(sequence(request, num_prompt_tokens=16, max_tokens=12))
            scheduler.waiting[-1].token_ids[:] = [ord(request)] * 16  # nobody finds another's prefix
        empty = 0
        for _ in range(400):
            plan = scheduler.schedule()
            empty = 0 if plan.scheduled else empty + 1
            scheduler.update(plan, oracle(plan))
        if scheduler.has_unfinished:
            assert empty > 100
            return
    pytest.fail("it never stalls")


def test_admission_on_the_next_chunk_throws_work_away() -> None:
    """It ends, and has computed most of it twice."""
    tokens = {}
    for name, fault in {"sound": SOUND, "faulty": FAULTS["admission on the next chunk"]}.items():
        scheduler, records = fault.scheduler(num_blocks=8, block_size=4, max_chunk_tokens=4, watermark_blocks=0)
        for request in "abc":
            scheduler.add(sequence(request, num_prompt_tokens=16, max_tokens=12))
        while scheduler.has_unfinished:
            scheduler.update(plan := scheduler.schedule(), oracle(plan))
        tokens[name] = sum(record.num_tokens for record in records)
    assert tokens["faulty"] > 1.5 * tokens["sound"]


@pytest.mark.parametrize("name", ["admission without reservation", "admission on the next chunk"])
def test_a_fault_counts_its_hits_as_the_engine_does(name: str) -> None:
    """Counters before and after would say nothing if the fault kept other books."""
    scheduler, _ = FAULTS[name].scheduler(num_blocks=64, block_size=4, prefix_cache="radix")
    for request in "ab":
        scheduler.add(sequence(request, num_prompt_tokens=16, max_tokens=2))
        while scheduler.has_unfinished:
            scheduler.update(plan := scheduler.schedule(), oracle(plan))
    stats = scheduler.cache.prefix_cache.stats
    assert (stats.queries, stats.hits, stats.hit_tokens) == (2, 1, 12)


def test_a_copy_that_forgets_v_keeps_every_book_and_changes_the_answers() -> None:
    backend = get_backend(threads=1)
    model = load_model("lab", backend=backend if backend.exact else "reference")
    truth, setting = truth_of(model, Setting(n=3)), Setting(n=3)
    assert run_cell(model, setting).difference(truth) == 0.0
    cell = run_cell(model, setting, runner=CopyForgetsV)
    assert cell.broken == "" and cell.count("copied") > 0
    assert cell.difference(truth) > 0
