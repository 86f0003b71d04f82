"""The live controls of memory count as the engine does, follow their settings, and leave a picture where no kernel is."""

from __future__ import annotations

import re

import pytest

from labcore.core.config import CacheConfig
from labcore.kv.paged_cache import PagedCache
from labcore.widgets.live_hit_rate import LiveHitRate, serve
from labcore.widgets.live_waste import SIZES, LiveWaste, fitting, lengths


@pytest.mark.parametrize("size", SIZES)
def test_those_who_fit_are_those_whom_the_pool_takes(size: int) -> None:
    asked, num_slots = lengths(160, 336, 2048), 16384
    pool, inside = PagedCache(CacheConfig(num_blocks=num_slots // size, block_size=size)), []
    for length in asked:
        if pool.blocks_for(length) > pool.num_available:
            break
        pool.reserve([], 0, length)
        inside.append(length)
    assert fitting(asked, size, num_slots) == inside


def said(live: LiveWaste) -> list[tuple[int, float, float]]:
    """Of each way: requests that fit, % in use, table entries."""
    found = re.findall(r"([\d,]+) requests fit, ([\d.]+)% .*?; a table has ([\d.]+) entries", live.out.value)
    return [(int(fit), float(used), float(entries)) for fit, used, entries in found]


def test_waste_follows_the_block_size_and_the_length() -> None:
    live = LiveWaste(65536, 2048)
    whole, blocks = said(live)
    assert whole[0] == 32 and whole[2] == 1.0 and blocks[0] > 3 * whole[0] and blocks[1] > 98
    live.block_size.value = 1
    assert said(live)[1][1] == 100.0 and said(live)[1][2] > 10 * blocks[2]
    live.block_size.value, live.answer.value = 128, 16
    assert said(live)[1][1] < 80 and said(live)[0][1] < 15  # short answers: both ways waste more


def test_what_is_found_is_what_can_be() -> None:
    """An ample pool: all but the requests that run beside the first of their prefix find its whole blocks."""
    requests, records = serve(num_prefixes=3, prefix_tokens=40, own_tokens=8, num_blocks=512)
    found = [request.num_cached_tokens for request in requests]
    assert set(found) == {0, 32} and found[6:] == [32] * 42
    assert sum(found) == sum(record.hit_tokens for record in records)


def test_the_cliff() -> None:
    live = LiveHitRate()
    live.prefixes.value = 8
    assert "0 of 15,360 tokens found: 0%" in live.out.value
    live.pool.value = 160
    assert "67%" in live.out.value
    live.prefix.value = 8  # half a block
    assert "0 of 3,456 tokens found: 0%" in live.out.value


def test_every_setting_can_be_served() -> None:
    live = LiveHitRate()
    for name in ("prefixes", "prefix", "own", "pool"):
        control = getattr(live, name)
        for value in (control.min, control.max):
            control.value = value
            assert live.out.value.count("<rect") == 2 * 48 and "refused" not in live.out.value
    live.prefixes.value, live.prefix.value, live.own.value, live.pool.value = 16, 512, 256, 64  # the tightest
    assert "preemptions" in live.out.value


@pytest.mark.parametrize("live", [LiveHitRate(), LiveWaste(65536, 2048)], ids=repr)
def test_without_a_kernel_a_picture_stands_in_its_place(live: LiveHitRate | LiveWaste) -> None:
    picture = live._repr_mimebundle_()["text/html"]
    assert picture.startswith('<div class="lab-live">') and picture == type(live)._repr_mimebundle_(live)["text/html"]
    assert repr(live) == f"{type(live).__name__}()"
