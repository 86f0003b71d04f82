"""The two live controls of scheduling under pressure: a pool and its clients, and one cell of the matrix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from labcore.lab.oracle import drive, scheduler_of, sequence
from labcore.widgets.live_matrix import LiveMatrix
from labcore.widgets.live_pressure import COLUMNS, LivePressure, tokens_again


def counts(control: LivePressure) -> dict[str, int]:
    [said] = re.findall("<b>(.*?)</b>", control.out.value)
    return {name: int(value.replace(",", "")) for name, value in re.findall(r"([a-z][a-z ]*): ([\d,]*\d)", said)}


def test_a_pool_that_holds_all_preempts_nobody() -> None:
    control = LivePressure()
    tight = counts(control)
    assert tight["of these again"] > 0 < tight["preemptions"]
    control.blocks.value = 96
    ample = counts(control)
    assert ample["preemptions"] == ample["of these again"] == 0
    assert ample["tokens computed"] == 64 * (64 + 32 + 64 - 1)
    assert ample["steps"] < tight["steps"]
    assert tight["tokens computed"] - tight["of these again"] == ample["tokens computed"]


def test_clients_and_cache_change_it() -> None:
    control = LivePressure()
    one, eight = control.clients, counts(control)
    one.value = 1
    assert counts(control)["preemptions"] == 0 < eight["preemptions"]
    one.value = 8
    control.prefix_cache.value = "radix"
    assert counts(control)["tokens computed"] < eight["tokens computed"]


@pytest.mark.parametrize(("blocks", "clients"), [(12, 1), (12, 16), (96, 1), (24, 16)])
def test_the_picture_stays_small(blocks: int, clients: int) -> None:
    control = LivePressure()
    control.blocks.value, control.clients.value = blocks, clients
    assert len(control.out.value) < 12_000 and control.out.value.count("M") <= 3 * COLUMNS + 10
    assert "nan" not in control.out.value


def test_tokens_again_are_counted_once_each() -> None:
    scheduler, records = scheduler_of(num_blocks=10, block_size=4, watermark_blocks=0, max_num_batched_tokens=6)
    for name in "abcd":
        scheduler.add(sequence(name, 9, 9))
    drive(scheduler)
    assert scheduler.num_preemptions > 0
    assert sum(record.num_tokens for record in records) - tokens_again(records) == 4 * (9 + 9 - 1)


def answer(n: int, pool: str) -> tuple[bool, Mapping[str, object]]:
    return n == 1, {"answers": 1000 * n, "pool <b>": pool}


def test_a_cell_of_the_matrix_is_run_when_it_is_chosen() -> None:
    asked: list[Any] = []

    def counted(**setting: Any) -> tuple[bool, Mapping[str, object]]:
        asked.append(setting)
        return answer(**setting)

    control = LiveMatrix({"n": (1, 3), "pool": ("ample", "tight")}, counted, pool="tight")
    assert asked == [{"n": 1, "pool": "tight"}]
    assert "1000" in control.out.value and "#009e73" in control.out.value and "pool &lt;b&gt;" in control.out.value
    control.choices["n"].value = "3"
    assert asked[-1] == {"n": 3, "pool": "tight"} and "3000" in control.out.value and "#d55e00" in control.out.value


def test_none_is_a_choice_like_any_other() -> None:
    asked: list[Any] = []
    control = LiveMatrix({"chunk": (None, 16)}, lambda chunk: (asked.append(chunk) is None, {}))
    assert control.choices["chunk"].value == "None"  # of an ipywidgets Dropdown, the value None is an empty box
    control.choices["chunk"].value = "16"
    assert asked == [None, 16]


@pytest.mark.parametrize("make", [LivePressure, lambda: LiveMatrix({"n": (1, 3), "pool": ("ample",)}, answer)])
def test_they_say_the_same_of_themselves_always(make: Any) -> None:
    control, other = make(), make()
    bundle = control._repr_mimebundle_()
    assert bundle["text/plain"] == f"{type(control).__name__}()" == repr(other)
    assert bundle["text/html"] == other._repr_mimebundle_()["text/html"] and control.out.value in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
