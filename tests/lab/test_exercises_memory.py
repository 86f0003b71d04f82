"""Checks of chapters 10 and 11: the right answer passes, the usual slips do not, and the verdict says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from labcore.kv.block_allocator import BlockAllocator
from labcore.kv.hash_cache import HashCache
from labcore.kv.prefix_cache import Domain
from labcore.lab.exercises.memory import check_answers, check_empty, check_hits, check_keys


def blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)


def answers(prompt: int, most: int, n: int, size: int) -> int:
    return prompt // size + n * (blocks(prompt + most - 1, size) - prompt // size)


def hits(prefixes: int, requests: int, prefix: int, own: int, size: int) -> int:
    return max(requests - prefixes, 0) * (prefix // size * size)


def keys(tokens: list[int], salt: str, adapter: str) -> list[bytes]:
    return list(HashCache(BlockAllocator(1), 4).keys(tokens, Domain(salt, adapter)))


def whole_prefixes(tokens: list[int], salt: str, adapter: str) -> list[Any]:
    return [(salt, adapter, *tokens[: end + 4]) for end in range(0, len(tokens) // 4 * 4, 4)]


def blocks_of(tokens: list[int]) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + 4]) for i in range(0, len(tokens) // 4 * 4, 4)]


def joined(tokens: list[int], salt: str, adapter: str) -> list[Any]:
    return [salt + adapter + repr(tokens[: end + 4]) for end in range(0, len(tokens) // 4 * 4, 4)]


@pytest.mark.parametrize(
    ("check", "right"),
    [
        (check_empty, lambda lengths, size: sum(-n % size for n in lengths)), (check_answers, answers), (check_hits, hits),
        (check_keys, keys), (check_keys, whole_prefixes),
    ],
)  # fmt: skip
def test_the_right_answer_passes(check: Any, right: Callable[..., object]) -> None:
    assert check(right).right, check(right)


@pytest.mark.parametrize("check", [check_empty, check_answers, check_hits, check_keys])
def test_no_answer_yet_and_an_error_are_told(check: Any) -> None:
    assert repr(check(lambda *a: None)).startswith("not answered yet")
    assert "your function raised ZeroDivisionError" in repr(check(lambda *a: 1 // 0))


WRONG: dict[str, tuple[Any, Callable[..., object], str]] = {
    "no block is ever full": (
        check_empty, lambda lengths, size: sum(size - n % size for n in lengths),
        "for lengths=[4, 8], block_size=4 your function says 8, the engine counted 0 empty slots",
    ),
    "nothing is shared": (
        check_answers, lambda p, m, n, size: n * blocks(p + m - 1, size),
        "num_prompt_tokens=10, max_tokens=7, n=3, block_size=4 your function says 12, the engine counted 8 blocks "
        "(do they not share the full blocks of the prompt?)",
    ),
    "the last token has a slot": (
        check_answers, lambda p, m, n, size: p // size + n * (blocks(p + m, size) - p // size), "num_prompt_tokens=10",
    ),
    "the first request hits, too": (
        check_hits, lambda k, r, p, own, size: r * (p // size * size), "your function says 40, the engine counted 32 tokens",
    ),
    "hits are no whole blocks": (check_hits, lambda k, r, p, own, size: max(r - k, 0) * p, "prefix_tokens=10"),
    "a key of the block alone": (
        check_keys, lambda tokens, salt, adapter: [(salt, adapter, block) for block in blocks_of(tokens)], "have one key",
    ),
    "no domain": (check_keys, lambda tokens, salt, adapter: whole_prefixes(tokens, "", ""), "'x', ''"),
    "names joined": (check_keys, joined, "([1, 2, 3, 4], 'x', '')) and (([1, 2, 3, 4], '', 'x')) block 0 of the first"),
    "part of a block has a key": (
        check_keys, lambda tokens, salt, adapter: [(salt, adapter, *tokens[: i + 4]) for i in range(0, len(tokens), 4)],
        "expected a key for each of the whole blocks",
    ),
    "a key by place": (check_keys, lambda tokens, salt, adapter: list(range(len(tokens) // 4)), "have one key"),
    "never the same twice": (check_keys, lambda tokens, salt, adapter: [object() for _ in blocks_of(tokens)], "different keys"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_what_is_wrong(name: str) -> None:
    check, answer, message = WRONG[name]
    verdict = check(answer)
    assert not verdict.right and message in repr(verdict), verdict
