"""The live controls of chapters 12 and 13 count what the scheduler does, and answer the same always."""

from __future__ import annotations

import re

import pytest

from labcore.core.config import SchedulerConfig
from labcore.lab.oracle import drive, scheduler_of, sequence
from labcore.widgets.live_arrivals import NUM_REQUESTS, Arrival, LiveArrivals, random_arrivals, serve, waits
from labcore.widgets.live_chunk import ARRIVES, LiveChunk


def test_arrivals_are_the_same_requests_at_any_rate() -> None:
    slow, fast = random_arrivals(0.1), random_arrivals(1.0)
    assert [(one.prompt, one.answer) for one in slow] == [(one.prompt, one.answer) for one in fast]
    assert len(slow) == NUM_REQUESTS and slow[-1].step > 5 * fast[-1].step
    assert [one.step for one in slow] == sorted(one.step for one in slow)


def test_serving_is_what_the_scheduler_does_when_all_come_at_once() -> None:
    records = serve([Arrival(0, 5, 3), Arrival(0, 9, 4)], SchedulerConfig(max_num_batched_tokens=8))
    scheduler, expected = scheduler_of(64, 16, max_num_batched_tokens=8)
    scheduler.add(sequence("0", 5, 3))
    scheduler.add(sequence("1", 9, 4))
    drive(scheduler)
    assert [record.scheduled for record in records] == [record.scheduled for record in expected]


def test_waiting_is_counted_from_the_arrival_to_the_first_share() -> None:
    records = serve([Arrival(0, 2, 4), Arrival(1, 2, 1), Arrival(9, 2, 1)], SchedulerConfig(max_num_seqs=1))
    assert waits(records) == [0, 3, 0]
    assert [record.num_tokens for record in records] == [2, 1, 1, 1, 2, 0, 0, 0, 0, 2]


@pytest.mark.parametrize(("rate", "budget", "seats"), [(0.4, 32, 8), (1.5, 32, 8), (0.05, 4, 1)])
def test_what_arrivals_say_is_what_the_records_say(rate: float, budget: int, seats: int) -> None:
    control = LiveArrivals()
    control.rate.value, control.budget.value, control.seats.value = rate, budget, seats
    records = serve(random_arrivals(rate), SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats))
    waited, busy = waits(records), [record.num_tokens for record in records if record.num_tokens]
    assert len(waited) == NUM_REQUESTS
    shown = control.out.value
    assert f"{NUM_REQUESTS} requests in {len(records):,} steps, {len(records) - len(busy):,} of them empty" in shown
    assert f"They waited {sum(waited) / len(waited):.1f} steps on average, {max(waited)} at the most" in shown
    assert f"{sum(busy) / len(busy):.1f} tokens a step" in shown
    assert len(re.findall("<rect", shown)) == len(busy) + sum(record.waiting > 0 for record in records)


def test_more_room_makes_nobody_wait_longer() -> None:
    control = LiveArrivals()
    control.rate.value = 1.5
    few = control.out.value
    control.seats.value, control.budget.value = 32, 128
    average = [float(re.search(r"waited ([\d.]+)", text)[1]) for text in (few, control.out.value)]  # type: ignore[index]
    assert average[1] < average[0]


@pytest.mark.parametrize(("chunk", "prompt", "running"), [(32, 256, 4), (1, 16, 1), (256, 16, 16), (100, 512, 3)])
def test_what_a_chunk_says_is_counted(chunk: int, prompt: int, running: int) -> None:
    control = LiveChunk(fixed=14)
    control.chunk.value, control.prompt.value, control.running.value = chunk, prompt, running
    steps = -(-prompt // chunk)
    first = steps * (14 + running) + prompt  # each step costs 14, the tokens of the others, and the long prompt once in all
    shown = control.out.value
    assert f"takes {steps:,} steps; its first token comes after <b>{first:,}</b>" in shown
    assert f"<b>{14 + running + min(chunk, prompt):,}</b>, the usual one {14 + running:,}" in shown
    assert len(re.findall("#56b4e9", shown)) == steps and len(re.findall("#e69f00", shown)) >= ARRIVES


def test_they_have_pictures_and_say_the_same_of_themselves_always() -> None:
    for make in (LiveArrivals, lambda: LiveChunk(14)):
        control, other = make(), make()
        bundle = control._repr_mimebundle_()
        assert bundle["text/plain"] == repr(control) == repr(other)
        assert "application/vnd.jupyter.widget-view+json" in bundle and 'class="lab-live"' in bundle["text/html"]
        assert bundle["text/html"] == other._repr_mimebundle_()["text/html"]
