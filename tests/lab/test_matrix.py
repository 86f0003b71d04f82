"""The matrix: every mechanism bites in it, the engine's answers are the plain loop's in all of it, and every fault shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labcore.core.config import SchedulerConfig
from labcore.kernels.registry import get_backend
from labcore.lab.exercises.interaction import ASKED, COPY, check_held, check_plainest, finds
from labcore.lab.faults import FALLEN, FAULTS, SOUND
from labcore.lab.matrix import BUDGET, DIMENSIONS, REQUESTS, SETTINGS, Answers, Cell, Setting, Watch, run_cell, truth_of
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model

ALL = Setting(prefix_cache="radix", chunk=16, pool="tight", n=3, policy="priority")
PLAINEST = {
    COPY: Setting(n=3),
    "lock that skips the matched node": Setting(prefix_cache="radix"),
    "admission on the next chunk": Setting(chunk=16),
    "cache that never yields": Setting(prefix_cache="hash", pool="tight"),
    "spin on empty steps": Setting(pool="tight", policy="priority"),
}


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    backend = get_backend(threads=1)
    return load_model("lab", backend=backend if backend.exact else "reference")


@pytest.fixture(scope="module")
def truths(model: LlamaModel) -> dict[Setting, Answers]:
    return {setting: truth_of(model, setting) for setting in {setting.plainest for setting in SETTINGS}}


@pytest.fixture(scope="module")
def cells(model: LlamaModel) -> dict[Setting, tuple[Cell, Watch]]:
    watches = {setting: Watch() for setting in SETTINGS}
    return {setting: (run_cell(model, setting, watch), watch) for setting, watch in watches.items()}


def test_it_has_216_cells() -> None:
    assert len(set(SETTINGS)) == len(SETTINGS) == 216
    assert {setting.plainest for setting in SETTINGS} == {
        Setting(n=n, speculative=speculative) for n in DIMENSIONS["n"] for speculative in ("off", "draft")
    }
    assert max(len(asked.prompt) for asked in REQUESTS) > 64 < BUDGET  # else a chunk of 64 would cut nothing


def test_the_plainer_cells_have_one_mechanism_less() -> None:
    assert Setting().plainer == []
    assert set(Setting(n=3, pool="tight").plainer) == {Setting(n=3), Setting(pool="tight")}
    assert len(ALL.plainer) == 5 and len(replace(ALL, speculative="draft").plainer) == 6


def test_every_cell_says_what_the_plain_loop_says(
    cells: dict[Setting, tuple[Cell, Watch]], truths: dict[Setting, Answers]
) -> None:
    assert {cell.broken for cell, _ in cells.values()} == {""}
    assert {cell.difference(truths[setting.plainest]) for setting, (cell, _) in cells.items()} == {0.0}


def test_every_mechanism_bites(cells: dict[Setting, tuple[Cell, Watch]]) -> None:
    """A cell in which nothing happens proves nothing."""
    for setting, (cell, _) in cells.items():
        assert (cell.count("preempted") > 0) == (setting.pool == "tight"), setting
        assert (cell.count("hit_tokens") > 0) == (setting.prefix_cache != "none"), setting
        assert (cell.count("copied") > 0) == (cell.count("forked") > 0) == (setting.n > 1), setting
        largest = max(share.num_tokens for record in cell.records for share in record.scheduled)
        assert largest <= (setting.chunk or BUDGET) and (setting.chunk or largest > 64), setting
        if setting.prefix_cache != "none" and setting.pool == "tight":
            assert cell.count("evicted") > 0, setting
        made, right = cell.guesses
        assert (made > right > 0) if setting.speculative != "off" else (made, right) == (0, 0), setting


def test_every_rule_is_looked_at_in_every_cell(cells: dict[Setting, tuple[Cell, Watch]]) -> None:
    kinds = {frozenset(watch.counts) for _, watch in cells.values()}
    assert len(kinds) == 1 and len(kinds.pop()) == 11
    for cell, watch in cells.values():
        assert watch.counts["free + idle + used = total"] == len(cell.records)
        assert watch.counts["at idle no block is held"] == 1


def test_answers_to_one_prompt_differ(truths: dict[Setting, Answers]) -> None:
    """Else n = 3 would prove no more than n = 1."""
    for asked in REQUESTS:
        assert len({tuple(truths[Setting(n=3)][name][0]) for name in (asked.name, f"{asked.name}#1", f"{asked.name}#2")}) == 3


def test_a_difference_is_seen(truths: dict[Setting, Answers]) -> None:
    truth = truths[Setting()]
    cell = Cell(answers={name: (list(ids), [row.copy() for row in rows]) for name, (ids, rows) in truth.items()})
    assert cell.difference(truth) == 0.0
    cell.answers["c"][1][2][7] += np.float32(0.5)
    assert 0.4 < cell.difference(truth) < 0.6
    cell.answers["c"][0][0] += 1
    assert cell.difference(truth) == float("inf")
    assert Cell().difference(truth) == float("inf")


@pytest.mark.parametrize("name", [*FAULTS, COPY])
def test_every_fault_is_found_in_it(name: str) -> None:
    assert any(finds(name, setting) for setting in (PLAINEST.get(name, ALL), ALL))


def test_no_fault_shows_in_the_plain_cell() -> None:
    assert not any(finds(name, Setting()) for name in [*FAULTS, COPY])


def test_two_faults_need_two_mechanisms() -> None:
    alone = [setting for setting in SETTINGS if setting.plainer == [Setting()]]
    assert len(alone) == 9
    missed = {name for name in [*FAULTS, COPY] if not any(finds(name, setting) for setting in alone)}
    assert missed == {"cache that never yields", "spin on empty steps"}


@pytest.mark.parametrize("speculative", DIMENSIONS["speculative"])
def test_guesses_that_are_not_taken_back_show_where_some_are_made(speculative: str) -> None:
    for setting in SETTINGS:
        if setting.speculative == speculative:
            broken = run_cell(None, setting, fault=FALLEN).broken
            assert broken == ("" if speculative == "off" else "queues, seats and counters agree"), setting


def test_the_fault_is_put_in_and_the_pool_is_the_settings() -> None:
    scheduler, _ = SOUND.scheduler(ALL.num_blocks)
    assert isinstance(scheduler.config, SchedulerConfig) and ALL.num_blocks < Setting().num_blocks


def test_the_plainest_cells() -> None:
    assert set(PLAINEST) == set(ASKED)
    assert check_plainest(PLAINEST.__getitem__).right
    assert "finds it, and so does" in check_plainest(lambda fault: ALL).sentence
    assert "finds nothing" in check_plainest(lambda fault: Setting()).sentence
    assert "expected a Setting" in check_plainest(lambda fault: "radix").sentence
    assert check_plainest(lambda fault: None).sentence.startswith("not answered yet")


def held(num_prompt_tokens: int, n: int, block_size: int, num_own: int) -> int:
    whole, last = num_prompt_tokens // block_size, -(-(num_prompt_tokens + num_own) // block_size)
    return whole + n * (last - whole) if num_own else last


def test_the_blocks_that_answers_hold() -> None:
    assert check_held(held).right
    assert "your function says 6, the engine holds 5 blocks" in check_held(lambda p, n, b, k: n * -(-p // b)).sentence
    assert "num_own=0" in check_held(lambda p, n, b, k: held(p, n, b, max(k, 1))).sentence
