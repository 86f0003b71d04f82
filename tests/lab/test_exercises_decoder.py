"""Checks of chapter 06's exercises: the right answer passes, and a wrong one is told what is wrong with it."""

from __future__ import annotations

import numpy as np
import pytest

from labcore.lab.exercises.decoder import FAULTS, check_attend_one, check_diagnosis, check_parameters
from labcore.lab.exercises.engine import check_blocks


def parameters(hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size):  # type: ignore[no-untyped-def]
    layer = 2 * hidden_size * head_dim * (num_heads + num_kv_heads) + 3 * hidden_size * intermediate_size + 2 * hidden_size
    return vocab_size * hidden_size + num_layers * layer + hidden_size


def attend_one(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    kv_head = np.arange(len(q)) // (len(q) // keys.shape[1])
    scores = np.einsum("hd,shd->hs", q, keys[:, kv_head]) / q.shape[-1] ** 0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hs,shd->hd", weights / weights.sum(axis=-1, keepdims=True), values[:, kv_head])


def attend_over(axis: int | None, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    kv_head = np.arange(len(q)) // (len(q) // keys.shape[1])
    weights = np.exp(np.einsum("hd,shd->hs", q, keys[:, kv_head]) / q.shape[-1] ** 0.5)
    return np.einsum("hs,shd->hd", weights / weights.sum(axis=axis, keepdims=True), values[:, kv_head])


def tiled(x: np.ndarray, heads: int) -> np.ndarray:
    return np.tile(x, (1, heads // x.shape[1], 1))


def diagnosis(suspect, right):  # type: ignore[no-untyped-def]
    ids = list(range(20, 40))
    off = np.abs(suspect(ids) - right(ids)).max(axis=-1)
    if off.max() < 1e-9:
        return "nothing"
    if np.abs(suspect(ids) - suspect([*ids[:-1], 7]))[:-1].max() > 1e-9:
        return "mask"
    if off[0] < 1e-9:
        return "positions"
    return "norm" if off.max() < 0.1 else "heads"


@pytest.mark.parametrize("check", [check_parameters, check_attend_one, check_diagnosis])
def test_no_answer_and_an_error_are_told(check) -> None:  # type: ignore[no-untyped-def]
    verdict = check(lambda *args, **kwargs: None)
    assert not verdict.right and repr(verdict).startswith("not answered yet: your function returned None for ")
    verdict = check(lambda *args, **kwargs: 1 // 0)
    assert not verdict.right and "raised ZeroDivisionError" in verdict.sentence
    for answer in ("?", [1, 2], np.zeros((2, 3)), object()):
        assert not check(lambda *args, answer=answer, **kwargs: answer).right


def test_the_right_answers_are_right() -> None:
    assert check_parameters(parameters).right
    assert check_attend_one(attend_one).right
    assert check_diagnosis(diagnosis).right


def test_weights_left_out_are_found() -> None:
    without_norms = check_parameters(lambda hidden, f, layers, *c: parameters(hidden, f, layers, *c) - hidden * (2 * layers + 1))
    assert "the engine counted 134515008 weights" in without_norms.sentence
    square = check_parameters(lambda h, f, layers, heads, kv, dim, v: parameters(h, f, layers, heads, kv, h // heads, v))
    assert square.sentence.startswith("wrong: for hidden_size=64")  # heads x head size is not always the hidden size
    assert not check_blocks(lambda *c: np.arange(3)).right  # an array is a wrong number, and no error


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda *c: float(parameters(*c)), "says 134515008.0, the engine counted 134515008 weights; expected a whole number"),
        (lambda *c: np.float64(parameters(*c)), "; expected a whole number"),
        (lambda h, *c: parameters(h, *c) + c[-1] * h, "vocab_size * hidden_size too many, as if the head were not tied"),
        (lambda h, f, n, *c: parameters(h, f, n, *c) - h * (2 * n + 1), ": as if there were no norms"),
        (lambda h, f, n, *c: parameters(h, f, n, *c) - h * 2 * n, ": as if the layers had no norms"),
        (lambda h, f, n, *c: parameters(h, f, n, *c) - h * n, ": as if a layer had one norm"),
        (lambda h, *c: parameters(h, *c) - h, ": as if there were no norm after the layers"),
        (lambda h, f, n, heads, kv, d, v: parameters(h, f, n, heads, kv, d, v) + 2 * n * h * (h - heads * d),
         ": as if num_heads * head_dim were hidden_size"),
    ],
)  # fmt: skip
def test_each_slip_of_counting_is_told_by_its_name(answer, told: str) -> None:  # type: ignore[no-untyped-def]
    verdict = check_parameters(answer)
    assert not verdict.right and verdict.sentence.endswith(told)


@pytest.mark.parametrize("answer", [lambda *c: 17, lambda *c: "many", lambda *c: [1]])
def test_a_count_that_no_known_slip_gives_is_told_without_one(answer) -> None:  # type: ignore[no-untyped-def]
    assert check_parameters(answer).sentence.endswith("the engine counted 134515008 weights")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda q, k, v: attend_one(q, tiled(k, len(q)), tiled(v, len(q))), "as if head h read KV head h % 2"),
        (lambda q, k, v: attend_one(q * q.shape[-1] ** 0.5, k, v), "were not divided by the root of head_dim"),
        (lambda q, k, v: attend_one(q, k[:-1], v[:-1]), "as if the newest token were left out"),
        (lambda q, k, v: attend_over(0, q, k, v), ", as if the softmax ran over the heads"),
        (lambda q, k, v: attend_over(None, q, k, v), ", as if the softmax ran over all heads and tokens at once"),
        (lambda q, k, v: attend_one(q, k, v).T, "your function returned shape (8, 4); expected (4, 8)"),
        (lambda q, k, v: attend_one(q, k, v) + 1e-6, "the largest difference from the engine is 1e-06"),
        (lambda q, k, v: attend_one(q, k, v) * np.nan, "the largest difference from the engine is nan"),
        (lambda q, k, v: "four heads", "returned str; expected an array of shape (4, 8)"),
    ],
)  # fmt: skip
def test_each_slip_of_attention_is_told_by_its_name(answer, told: str) -> None:  # type: ignore[no-untyped-def]
    verdict = check_attend_one(answer)
    assert not verdict.right and told in verdict.sentence


def test_attention_may_not_change_what_it_is_given_for_later_cases() -> None:
    def greedy(q, keys, values):  # type: ignore[no-untyped-def]
        out = attend_one(q, keys, values)
        q[:], keys[:], values[:] = 0, 0, 0
        return out

    assert check_attend_one(greedy).right


@pytest.mark.parametrize("always", FAULTS)
def test_one_diagnosis_for_all_is_wrong(always: str) -> None:
    assert not check_diagnosis(lambda suspect, right: always).right


def test_an_unknown_diagnosis_is_told_what_there_is() -> None:
    sentence = check_diagnosis(lambda suspect, right: "tired").sentence
    assert sentence == "wrong: for suspect 1 your function says 'tired'; expected one of " + ", ".join(FAULTS)


def test_what_a_suspect_was_is_told_with_a_wrong_diagnosis_only() -> None:
    assert check_diagnosis(lambda suspect, right: None).sentence == "not answered yet: your function returned None for suspect 1"
    sentence = check_diagnosis(lambda suspect, right: "heads").sentence
    assert sentence == (
        "wrong: for suspect 1 your function says 'heads'; expected 'positions': it is a decoder that doubles positions"
    )
