"""The tile walk shows what an online softmax keeps, and ends at the softmax; the live controls count as the code walks."""

from __future__ import annotations

import re

import numpy as np
import pytest

from labcore.core.errors import InvalidConfig
from labcore.kernels.attention import Running, tiles, walk
from labcore.quant.quantized_tensor import QuantizedTensor
from labcore.widgets.live_intensity import BYTES, LiveIntensity
from labcore.widgets.live_tiles import LiveTiles
from labcore.widgets.tile_walk import TileWalk

RNG = np.random.default_rng(4)
Q, KEYS, VALUES = RNG.standard_normal(8), RNG.standard_normal((22, 8)), RNG.standard_normal((22, 3))


@pytest.mark.parametrize("tile", [1, 5, 22, 100])
def test_each_step_is_what_is_kept_after_its_tile(tile: int) -> None:
    replay = TileWalk(Q, KEYS, VALUES, tile=tile)
    scores = KEYS @ Q / 8**0.5
    before = -np.inf
    for (start, end), step, row, says in zip(tiles(22, tile), replay.data["steps"], replay.rows, replay.says, strict=True):
        largest = scores[:end].max()
        kept, total = np.exp(before - largest), np.exp(scores[:end] - largest).sum()
        assert step[:2] == [start, end]
        assert np.allclose(step[2:], [largest, kept, total], atol=6e-4)
        assert row[1:] == [f"{x:.2f}" for x in (scores[start:end].max(), largest, kept, total)]
        assert ("scaled by" in says) == (start > 0 and largest > before)
        before = largest
    assert np.allclose(replay.data["scores"], scores, atol=6e-4)


def test_a_tile_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="tile is 0"):
        TileWalk(Q, KEYS, VALUES, tile=0)


@pytest.mark.parametrize(("length", "tile"), [(64, 64), (1024, 128), (320, 96)])
def test_the_tiles_that_are_counted_are_those_of_a_walk(length: int, tile: int) -> None:
    control = LiveTiles(head_dim=8)
    control.length.value, control.tile.value = length, tile
    x = np.zeros((length, 1))
    met = sum(len(list(walk(x[a:b], x[:b], x[:b], tile=tile))) for a, b in tiles(length, tile))
    blocks = len(list(tiles(length, tile)))
    assert f"{met:,} of {blocks**2:,} tiles are met" in control.out.value
    assert len(re.findall("<rect", control.out.value)) == 2 * blocks
    assert control._repr_mimebundle_()["text/html"].count("<svg") == 1


def test_operations_for_a_byte_are_those_of_the_formats() -> None:
    control = LiveIntensity({"head": (64, 32), "k": (8, 32)})
    control.tokens.value, control.matrix.value, control.format.value = 3, "k", "Q4_1"
    block = np.zeros((8, 20), np.uint8)  # 32 weights in 20 bytes
    weights = QuantizedTensor("Q4_1", (8, 32), block).nbytes
    assert f"{2 * 3 * 8 * 32 / (weights + 4 * 3 * 40):.2f} operations for a byte" in control.out.value
    assert set(BYTES) == {"F32", "Q8_0", "Q4_0", "Q4_1"} and BYTES["F32"] == 4


def test_what_is_kept_before_the_first_tile_scales_to_nothing() -> None:
    empty = Running.empty(np.zeros((1, 2)), 3)
    after = empty.with_tile(np.zeros((1, 4)), np.ones((4, 3)))
    assert np.array_equal(after.total, [[4.0]]) and np.array_equal(after.result(), np.ones((1, 3)))
