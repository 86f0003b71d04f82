"""Checks on KV memory: the scheduler, the pool and the prefix caches count, with an oracle for a model.

>>> check_empty(lambda lengths, block_size: None).right
False
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from labcore.core.config import CacheConfig
from labcore.kv.paged_cache import PagedCache
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike
from labcore.lab.oracle import drive, scheduler_of, sequence

COUNTED, CHECKED_ON = "the engine counted", 4  # tokens of a block, for keys


def check_empty(answer: Answer) -> Verdict:
    """answer(lengths, block_size): empty slots of the blocks that hold sequences of these many tokens."""
    cases = [([5], 4), ([4, 8], 4), ([1, 2, 3], 16), ([17, 33, 100], 16), ([7, 9], 1), ([1], 128)]
    return judge(answer, named("lengths, block_size", *cases), unlike(_empty, COUNTED, "empty slots"), "the pool")


def check_answers(answer: Answer) -> Verdict:
    """answer(num_prompt_tokens, max_tokens, n, block_size): blocks of the pool that n answers to one prompt hold at their end."""
    cases = [(10, 7, 1, 4), (10, 7, 3, 4), (8, 4, 2, 4), (8, 2, 2, 4), (9, 2, 4, 16), (33, 40, 8, 16), (16, 17, 2, 16)]

    def slip(got: object, num_prompt_tokens: int, max_tokens: int, n: int, block_size: int) -> str:
        alone = _answers(num_prompt_tokens, max_tokens, 1, block_size)
        return " (do they not share the full blocks of the prompt?)" if n > 1 and got == n * alone else ""

    fault = unlike(_answers, COUNTED, "blocks", slip)
    return judge(answer, named("num_prompt_tokens, max_tokens, n, block_size", *cases), fault, "the engine")


def check_hits(answer: Answer) -> Verdict:
    """answer(num_prefixes, num_requests, prefix_tokens, own_tokens, block_size): prompt tokens found in an ample prefix cache.

    One request after the other; request i begins with prefix i % num_prefixes and goes on with tokens that no other has.
    """
    cases = [(1, 5, 8, 4, 4), (2, 6, 10, 3, 4), (3, 3, 8, 8, 4), (1, 4, 3, 9, 4), (4, 20, 33, 7, 16), (5, 3, 16, 1, 16)]
    names = "num_prefixes, num_requests, prefix_tokens, own_tokens, block_size"
    return judge(answer, named(names, *cases), unlike(_hits, COUNTED, "tokens"), "the engine")


def check_keys(answer: Answer) -> Verdict:
    """answer(tokens, salt, adapter): a key for each whole block of 4 tokens; equal where the prefix and the domain are."""
    a, b, c = [1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]
    prompts: list[tuple[Any, ...]] = [
        (a + b, "", ""), (a + b + c[:3], "", ""), (a + c, "", ""), (c + b, "", ""), (a + a, "", ""),
        (a, "x", ""), (a, "", "x"), (a, "x", "y"), (a, "xy", ""), (a, "y", "x"), ([1, 23, 4, 5, 12, 3, 4, 5], "", ""),
    ]  # fmt: skip
    cases = {f"({p!r}) and ({q!r})": (p, q) for p, q in combinations(prompts, 2)}

    def ask(p: tuple[Any, ...], q: tuple[Any, ...]) -> object:
        both = [answer(*p), answer(*q)]
        return None if None in both else both

    def fault(both: Any, *asked: tuple[Any, ...]) -> str:
        for keys, (tokens, _, _) in zip(both, asked, strict=True):
            if not isinstance(keys, list | tuple) or len(keys) != len(tokens) // CHECKED_ON:
                return f"your function gave {keys!r}; expected a key for each of the whole blocks"
        for i, x in enumerate(both[0]):
            for j, y in enumerate(both[1]):
                (mine, *domain), (theirs, *other) = asked
                same = domain == other and i == j and mine[: 4 * i + 4] == theirs[: 4 * j + 4]
                if (x == y) != same:
                    return f"block {i} of the first and block {j} of the second have {'different keys' if same else 'one key'}"
        return ""

    return judge(ask, cases, fault, "whoever compares whole prefixes")


def _empty(lengths: list[int], block_size: int) -> int:
    pool, tables = PagedCache(CacheConfig(num_blocks=1024, block_size=block_size)), [list[int]() for _ in lengths]
    for table, length in zip(tables, lengths, strict=True):
        pool.reserve(table, 0, length)
    return pool.num_used * block_size - sum(lengths)


def _answers(num_prompt_tokens: int, max_tokens: int, n: int, block_size: int) -> int:
    scheduler, _ = scheduler_of(n * (num_prompt_tokens + max_tokens), block_size)
    request = sequence("a", num_prompt_tokens, max_tokens)
    request.num_forks = n - 1
    scheduler.add(request)
    drive(scheduler, max_tokens - 1)  # all but the last step, whose blocks are asked for
    scheduler.schedule()
    return scheduler.cache.num_used


def _hits(num_prefixes: int, num_requests: int, prefix_tokens: int, own_tokens: int, block_size: int) -> int:
    scheduler, records = scheduler_of(4096, block_size, prefix_cache="radix")
    for i in range(num_requests):
        request = sequence(str(i), prefix_tokens + own_tokens, 1)
        request.token_ids = [100 + i % num_prefixes] * prefix_tokens + [1000 + i] * own_tokens
        scheduler.add(request)
        drive(scheduler)
    return sum(record.hit_tokens for record in records)
