"""draw and law against the law as it is defined, in numpy and float64: every variant, one thread and two, and the first rung."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from support import ISAS, ids

from labcore.core.errors import ShapeError
from labcore.kernels.native import NativeBackend

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")

NEAR = 1e-12  # u this near to a border may fall on either side: the sums there are taken in another order
ROWS = {1: 200, 3: 600, 17: 800, 781: 800, 1823: 400, 49152: 24}  # by vocabulary: 2,824 sets of numbers
ONE_BELOW_1 = 1 - 2.0**-53
VARIANTS = {f"{isa}, {threads}": (isa, threads, False) for isa in ISAS for threads in (1, 2)} | {
    f"{isa}, reference": (isa, 2, True) for isa in ISAS
}


@dataclass(frozen=True)
class Rows:
    """The arguments of `draw`, in its order."""

    logits: np.ndarray
    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray
    u: np.ndarray
    edit_start: np.ndarray
    edit_ids: np.ndarray
    edit_values: np.ndarray

    @classmethod
    def of(cls, logits: np.ndarray, u: object = 0.5, edits: list[dict[int, float]] | None = None, **numbers: object) -> Rows:
        """Numbers that are not given change nothing; edits: by row, id -> value, in any order."""
        edits = edits or [{}] * len(logits)
        told = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "u": u} | numbers
        full = {name: np.full(len(logits), value, np.int64 if name == "top_k" else float) for name, value in told.items()}
        flat = [one for row in edits for one in row.items()]
        return cls(
            logits=np.ascontiguousarray(logits, np.float32),
            **full,
            edit_start=ids(np.cumsum([0, *map(len, edits)])),
            edit_ids=ids([i for i, _ in flat]),
            edit_values=np.array([value for _, value in flat], float),
        )

    def draw(self, backend: NativeBackend) -> np.ndarray:
        return backend.draw(*(getattr(self, name) for name in Rows.__dataclass_fields__))

    def law(self, backend: NativeBackend) -> np.ndarray:
        return backend.law(*(getattr(self, name) for name in Rows.__dataclass_fields__ if name != "u"))

    def edited(self, row: int) -> np.ndarray:
        x = self.logits[row].astype(np.float64)
        own = slice(self.edit_start[row], self.edit_start[row + 1])
        x[self.edit_ids[own]] = self.edit_values[own]
        return x


def masses(rows: Rows, row: int) -> tuple[np.ndarray, bool]:
    """What the law keeps, (vocab,), not normalised; and whether a border lies so near a token that rounding decides on it."""
    x, (k, p, least) = rows.edited(row), (rows.top_k[row], rows.top_p[row], rows.min_p[row])
    if rows.temperature[row] == 0:
        return np.eye(1, len(x), int(np.argmax(x)))[0], False
    with np.errstate(over="ignore"):
        z = (x - x.max()) / rows.temperature[row]
    w = np.where(z > -708, np.exp(np.maximum(z, -708)), 0.0)
    order = np.argsort(-w, kind="stable")
    sorted_w = w[order]
    keep, doubtful = np.arange(len(x)) < (k or len(x)), False
    if 0 < k < len(x) and sorted_w[k - 1] != sorted_w[k]:
        doubtful |= bool(sorted_w[k - 1] - sorted_w[k] < 2e-15 * sorted_w[k - 1])
    if p < 1:
        mass = np.cumsum(np.where(keep, sorted_w, 0.0))
        before, limit = np.concatenate([[0.0], mass[:-1]]), p * mass[-1]
        exact = np.all((w == 0) | (w == 1))  # sums of ones have no rounding, in any order
        doubtful |= bool(np.any((np.abs(before - limit) < NEAR * mass[-1])[1:] & keep[1:])) and not exact
        keep &= before < limit
    doubtful |= bool(np.any((np.abs(w - least) < NEAR * least) & (w != 1)))
    w[order[~keep]] = 0.0
    return np.where(w >= least, w, 0.0), doubtful


@cache
def random_rows(vocab: int) -> Rows:
    """Logits with ties, with bans, flat, steep; numbers at their ends and between; edits of every kind."""
    rng = np.random.default_rng(vocab)
    n = ROWS[vocab]
    logits = (rng.standard_normal((n, vocab)) * rng.choice([0.0, 1e-3, 1, 4, 30], (n, 1))).astype(np.float32)
    logits[::3] = np.round(logits[::3] * 2) / 2  # many ties
    logits[rng.random((n, vocab)) < rng.choice([0, 0, 0.5, 0.99], (n, 1))] = -np.inf
    logits[np.arange(n), rng.integers(0, vocab, n)] = rng.choice([0.0, 3.0, 1e30, 1e-40], n)  # one is finite
    edits = [edits_of(row, rng) for row in logits]
    return Rows.of(
        logits,
        edits=edits,
        u=np.where(rng.random(n) < 0.7, rng.random(n), rng.choice([0.0, 1e-300, ONE_BELOW_1], n)),
        temperature=rng.choice([0.0, 1e-310, 1e-3, 0.1, 0.7, 1.0, 2.0, 1e6], n),
        top_k=rng.choice([0, 0, 1, 2, 50, vocab, vocab + 9, 2**62], n),
        top_p=rng.choice([1.0, 1.0, 1e-8, 5e-324, 0.5, 0.9, 1 - 1e-7], n),
        min_p=rng.choice([0.0, 0.0, 0.0, 1e-9, 0.05, 0.5, 1.0], n),
    )


def edits_of(row: np.ndarray, rng: np.random.Generator) -> dict[int, float]:
    """Penalties, bans, ties with the largest, any number; where nothing finite would be left, a value that no float32 holds."""
    which = rng.choice(len(row), int(rng.choice([0, 0, 1, min(len(row), 40)])), replace=False)
    n = len(which)
    kinds = np.stack([row[which] - 1.5, np.full(n, -np.inf), np.full(n, row.max()), rng.normal(0, 5, n)])
    values = kinds[rng.integers(0, 4, n), np.arange(n)]
    edited = row.astype(float)
    edited[which] = values
    if np.isneginf(edited.max()):
        values[0] = 1e300
    return dict(zip(which.tolist(), values.tolist(), strict=True))


@cache
def expected(vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """The masses that are kept, (rows, vocab), and which rows are doubtful."""
    found = [masses(random_rows(vocab), row) for row in range(ROWS[vocab])]
    return np.array([w for w, _ in found]), np.array([doubtful for _, doubtful in found])


@pytest.mark.parametrize("vocab", ROWS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_law_and_tokens_are_those_of_the_definition(variant: str, vocab: int) -> None:
    isa, threads, reference = VARIANTS[variant]
    backend = NativeBackend(isa=isa, threads=threads, reference=reference)
    rows, (w, doubtful) = random_rows(vocab), expected(vocab)
    before = rows.logits.copy()
    law, tokens = rows.law(backend), rows.draw(backend)
    assert np.array_equal(rows.logits, before)
    assert doubtful.mean() < 0.02
    want = w / w.sum(axis=1, keepdims=True)
    sure = ~doubtful
    assert np.array_equal(law[sure] > 0, want[sure] > 0)
    assert np.abs(law - want)[sure].max() < NEAR
    cumulative = np.cumsum(w, axis=1)
    total = cumulative[:, -1:]
    target = np.minimum(rows.u[:, None] * total, np.nextafter(total, 0))
    chosen = np.argmax(cumulative > target, axis=1)
    near = (np.abs(cumulative - target) < NEAR * total).any(axis=1) & (rows.u > 0)
    other = sure & (tokens != chosen)
    assert not np.any(other & ~near)
    assert np.count_nonzero(other & (rows.u < ONE_BELOW_1)) == 0  # and where it may be so, it is not
    assert np.all(w[np.arange(len(w)), tokens][sure] > 0)


@pytest.fixture(params=VARIANTS)
def backend(request: pytest.FixtureRequest) -> NativeBackend:
    isa, threads, reference = VARIANTS[request.param]
    return NativeBackend(isa=isa, threads=threads, reference=reference)


def test_ties_on_every_border_go_to_the_lower_id(backend: NativeBackend) -> None:
    """Ten equal logits: masses are ones, their sums have no rounding, and each border falls between two tokens."""
    flat = np.zeros((1, 10))

    def kept(**numbers: object) -> list[int]:
        return np.flatnonzero(Rows.of(flat, **numbers).law(backend)[0]).tolist()

    assert kept() == kept(top_k=10) == kept(top_k=11) == kept(min_p=1.0) == list(range(10))
    assert kept(top_k=3) == kept(top_p=0.3) == [0, 1, 2]
    assert kept(top_p=0.9) == list(range(9)) and kept(top_p=1 - 1e-7) == list(range(10))
    assert kept(top_p=1e-8) == kept(top_k=1) == kept(temperature=0.0) == [0]
    assert kept(top_k=4, top_p=0.5) == [0, 1]  # p is of the mass that top_k kept
    assert kept(top_k=4, edits=[{1: -np.inf, 2: 0.5, 9: 0.5}]) == [0, 2, 3, 9]
    assert kept(temperature=0.0, edits=[{0: -1.0, 8: 0.5, 9: 0.5}]) == [8]
    halves = np.log(np.array([[4, 2, 2, 1, 1, 1, 1]]))
    assert np.flatnonzero(Rows.of(halves, min_p=0.5 - 1e-6).law(backend)[0]).tolist() == [0, 1, 2]
    assert np.flatnonzero(Rows.of(halves, top_p=0.45, min_p=0.3).law(backend)[0]).tolist() == [0, 1]  # 5.4 of 12


def test_ends_of_u(backend: NativeBackend) -> None:
    """0 gives the first token that has a mass, the largest u the last one: never one of mass 0."""
    for vocab in (5, 64, 200, 3000):
        x = np.full((1, vocab), -np.inf, np.float32)
        first, last = vocab // 3, vocab - 2
        x[0, first : last + 1] = -3.0
        for numbers in ({}, {"top_k": vocab}, {"top_p": 1 - 1e-7}, {"min_p": 0.5}):
            assert Rows.of(x, u=0.0, **numbers).draw(backend) == [first]
            assert Rows.of(x, u=5e-324, **numbers).draw(backend) == [first]
            assert Rows.of(x, u=ONE_BELOW_1, **numbers).draw(backend) == [last]


def test_a_row_without_a_largest_number_spoils_no_other(backend: NativeBackend) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((9, 781)).astype(np.float32)
    x[1, 780], x[2, 63], x[3] = np.nan, np.inf, -np.inf
    x[7, 5], x[8, 6] = np.nan, np.inf
    edits = [{}, {3: 1.0}, {}, {}, {5: np.nan}, {5: np.inf}, {5: -np.inf}, {5: 0.0}, {6: -np.inf}]
    for numbers in ({"temperature": 0.0}, {}, {"top_k": 5, "top_p": 0.9, "min_p": 0.01}):
        rows = Rows.of(x, u=0.3, edits=edits, **numbers)
        tokens, law = rows.draw(backend), rows.law(backend)
        assert np.array_equal(tokens < 0, [False, True, True, True, True, True, False, False, False])
        assert np.array_equal(tokens[1:6], [-1] * 5) and np.isnan(law[1:6]).all()
        for row in (0, 6, 7, 8):  # a value that is edited away is not looked at
            alone = Rows.of(x[row : row + 1], u=0.3, edits=edits[row : row + 1], **numbers)
            assert np.array_equal(alone.law(backend)[0], law[row]) and alone.draw(backend)[0] == tokens[row]
            assert law[row].sum() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [17, 1823])
def test_a_row_has_the_same_bits_with_any_mates_and_threads(isa: str, vocab: int) -> None:
    rows = random_rows(vocab)
    one = NativeBackend(isa=isa, threads=1)
    law, tokens = rows.law(one), rows.draw(one)
    for threads in (2, 3):
        assert rows.law(NativeBackend(isa=isa, threads=threads)).tobytes() == law.tobytes()
        assert np.array_equal(rows.draw(NativeBackend(isa=isa, threads=threads)), tokens)
    for row in range(0, ROWS[vocab], 37):
        own = slice(rows.edit_start[row], rows.edit_start[row + 1])
        numbers = {name: getattr(rows, name)[row] for name in ("temperature", "top_k", "top_p", "min_p", "u")}
        edits = [dict(zip(rows.edit_ids[own].tolist(), rows.edit_values[own].tolist(), strict=True))]
        alone = Rows.of(rows.logits[row : row + 1], edits=edits, **numbers)
        assert alone.law(one).tobytes() == law[row].tobytes() and alone.draw(one)[0] == tokens[row]


def test_powers_are_right_to_the_last_bits(backend: NativeBackend) -> None:
    """e^z over its whole range, within 4 units in the last place; a division and a product of the test's own are in it."""
    z = np.concatenate([[0.0], -np.random.default_rng(0).uniform(0, 700, 20_000), -(2.0 ** -np.arange(1, 60)), [-708.5, -1e30]])
    z = z.astype(np.float32)
    law = Rows.of(z[None]).law(backend)[0]
    want = np.exp(z.astype(np.longdouble))
    error = np.abs(law[:-2] / law[0] / want[:-2] - 1)
    assert error.max() < 4 * 2.0**-52
    assert np.array_equal(law[-2:], [0, 0])


def test_draws_follow_the_law(backend: NativeBackend) -> None:
    """200,000 draws with all filters: chi-square within 5 standard deviations of its mean; what is not kept is never drawn."""
    n, vocab = 200_000, 19
    rng = np.random.default_rng(11)
    x = rng.normal(0, 1.5, vocab)
    told = {"temperature": 1.3, "top_k": 14, "top_p": 0.97, "min_p": 0.02, "edits": [{3: 1.0, 5: -np.inf}]}
    one = Rows.of(x[None], **told)
    law = one.law(backend)[0]
    kept = np.flatnonzero(law)
    assert 5 < len(kept) < 14
    many = Rows.of(np.tile(x, (n, 1)), u=rng.random(n), **(told | {"edits": told["edits"] * n}))
    counts = np.bincount(many.draw(backend), minlength=vocab)
    assert counts.sum() == n == counts[kept].sum()
    chi_square = ((counts - n * law)[kept] ** 2 / (n * law[kept])).sum()
    freedom = len(kept) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_no_rows_and_no_vocabulary(backend: NativeBackend) -> None:
    none = Rows.of(np.empty((0, 7)))
    assert none.draw(backend).shape == (0,) and none.law(backend).shape == (0, 7)
    empty = Rows.of(np.empty((2, 0)))
    assert np.array_equal(empty.draw(backend), [-1, -1]) and empty.law(backend).shape == (2, 0)


BAD = {
    "temperature is nan": ({"temperature": np.nan}, "temperature is nan in row 0; expected a finite number, 0 or more"),
    "temperature is infinite": ({"temperature": np.inf}, "temperature is inf in row 0"),
    "temperature is negative": ({"temperature": [1, -0.5]}, "temperature is -0.500000 in row 1"),
    "top_k is negative": ({"top_k": -1}, "top_k is -1 in row 0; expected 0 (all) or more"),
    "top_p is 0": ({"top_p": 0.0}, "top_p is 0.000000 in row 0; expected a number above 0, up to 1"),
    "top_p is nan": ({"top_p": np.nan}, "top_p is nan in row 0"),
    "min_p is above 1": ({"min_p": 1.5}, "min_p is 1.500000 in row 0; expected a number from 0 to 1"),
    "min_p is nan": ({"min_p": [0, np.nan]}, "min_p is nan in row 1"),
    "u is 1": ({"u": 1.0}, "u is 1.000000 in row 0; expected a number from 0, below 1"),
    "u is nan": ({"u": np.nan}, "u is nan in row 0"),
    "id": ({"edits": [{}, {9: 1.0}]}, "edit id 9 at index 0 is outside [0, 9)"),
    "negative id": ({"edits": [{-1: 1.0}, {}]}, "edit id -1 at index 0 is outside [0, 9)"),
}


@pytest.mark.parametrize("bad", BAD)
def test_numbers_out_of_range_are_refused(bad: str) -> None:
    numbers, words = BAD[bad]
    backend = NativeBackend(threads=1)
    rows = Rows.of(np.zeros((2, 9)), **numbers)
    for call in (rows.draw, rows.law) if not bad.startswith("u ") else (rows.draw,):
        with pytest.raises(ValueError) as raised:
            call(backend)
        assert words in str(raised.value) and str(raised.value).startswith(call.__name__ + ": ")


def test_arrays_are_checked_and_never_copied() -> None:
    backend = NativeBackend(threads=1)
    good = Rows.of(np.zeros((2, 9)), edits=[{1: 0.0, 4: 0.0}, {}])

    def refused(error: type[Exception], words: str, **arrays: np.ndarray) -> None:
        with pytest.raises(error) as raised:
            Rows(**{name: getattr(good, name) for name in Rows.__dataclass_fields__} | arrays).draw(backend)
        assert words in str(raised.value)

    refused(TypeError, "logits is float64; expected float32", logits=np.zeros((2, 9)))
    refused(TypeError, "logits has shape (2, 9) in strides", logits=np.zeros((9, 2), np.float32).T)
    refused(TypeError, "temperature is float32; expected float64", temperature=np.ones(2, np.float32))
    refused(TypeError, "top_k is int32; expected int64", top_k=np.zeros(2, np.int32))
    refused(ShapeError, "top_p has shape (3,); expected (2,) to match logits (2, 9)", top_p=np.ones(3))
    refused(ShapeError, "u has shape (1,); expected (2,)", u=np.zeros(1))
    refused(ShapeError, "edit_start has shape (2,); expected (3,)", edit_start=ids([0, 2]))
    refused(ShapeError, "edit_values has shape (1,); expected (2,)", edit_values=np.zeros(1))
    refused(ValueError, "edit id 4 stands twice in row 0", edit_ids=ids([4, 4]))
    refused(ValueError, "edit_start must run from 0 to the 2 edits", edit_start=ids([0, 2, 1]))
    refused(ValueError, "edit_start must run from 0 to the 2 edits", edit_start=ids([1, 2, 2]))
    refused(ValueError, "edit_start descends or leaves its array in row 0", edit_start=ids([0, 3, 2]))
    refused(ValueError, "edit_start descends or leaves its array in row 0", edit_start=ids([0, -1, 2]))
    assert good.draw(backend).tolist() == [4, 4]
    assert not any(
        hasattr(NativeBackend(threads=1, door=door), name) for door in ("ctypes", "pybind11") for name in ("draw", "law")
    )
