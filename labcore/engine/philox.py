"""Random numbers that are a function of their place: Philox 4x64 with 10 rounds (Salmon et al. 2011).

There is no state to carry, to copy or to lose: a number belongs to (key, counter), whoever asks and when.

    >>> hex(philox((0, 0, 0, 0), (0, 0))[0])
    '0x16554d9eca36314c'
"""

from __future__ import annotations

MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B  # added to the key after each round
ROUNDS = 10
MASK = (1 << 64) - 1

Counter = tuple[int, int, int, int]


def philox(counter: Counter, key: tuple[int, int]) -> Counter:
    """Four random words of 64 bits for this counter and key; all are words of 64 bits."""
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(ROUNDS):
        first, second = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b, c, d = (second >> 64) ^ b ^ k0, second & MASK, (first >> 64) ^ d ^ k1, first & MASK
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return a, b, c, d


def uniform(seed: int, sample_index: int, position: int, stream: int = 0) -> float:
    """The random number in [0, 1) of a place: of the 53 upper bits of the first word, as exact as a float64 can be.

    stream: numbers that are needed besides the one that chooses a token have streams of their own.
    """
    return (philox((position + 1 & MASK, sample_index, stream, 0), (seed, 0))[0] >> 11) * 2.0**-53
