"""Checks on speculative decoding: the engine's own `verify` and `draft_length` say what is right.

>>> check_length(lambda acceptance, running: None).right
False
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labcore.engine.plan import Draft
from labcore.engine.speculative.draft_length import draft_length
from labcore.engine.verify import agreeing, residual
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike

MOST = 8


def check_kept(answer: Answer) -> Verdict:
    """answer(draft, chosen, stops): the tokens that an answer gets from a pass; chosen is one longer than draft."""
    cases = [
        ([5, 6, 7], [5, 6, 7, 8], [2]), ([5, 6, 7], [5, 9, 7, 8], [2]), ([5, 6], [9, 6, 7], [2]), ([], [4], [2]),
        ([5, 2, 7], [5, 2, 7, 8], [2]), ([5, 6, 7], [5, 2, 7, 8], [2]), ([2, 2], [2, 2, 2], [2]), ([5, 6], [5, 6, 2], [2]),
        ([5, 3, 2], [5, 3, 2, 1], [2, 3]),
    ]  # fmt: skip

    def slip(got: object, draft: list[int], chosen: list[int], stops: list[int]) -> str:
        if got == tuple(_agreeing(draft, chosen)):
            return ": a stop inside the run ends the answer there"
        return ": guesses that were not right are in it" if got == (*draft, chosen[-1]) else ""

    return judge(answer, named("draft, chosen, stops", *cases), unlike(_kept, "the engine keeps", slip=slip), "the engine")


def _agreeing(draft: list[int], chosen: list[int]) -> list[int]:
    kept = agreeing(Draft(tuple(draft)), chosen)
    assert isinstance(kept, list)
    return kept


def _kept(draft: list[int], chosen: list[int], stops: list[int]) -> tuple[int, ...]:
    kept = _agreeing(draft, chosen)
    end = next((i + 1 for i, token in enumerate(kept) if token in stops), len(kept))
    return tuple(kept[:end])


def check_residual(answer: Answer) -> Verdict:
    """answer(p, q): the law that a token is drawn from where a guess fell, as numbers that sum to 1."""
    rng = np.random.default_rng(0)
    laws = [([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]), ([0.0, 0.5, 0.5], [1.0, 0.0, 0.0]), ([0.25, 0.75], [0.5, 0.5])]
    laws += [tuple(rng.dirichlet(np.ones(6), 2).round(3).tolist()), ([0.5, 0.5], [0.5, 0.5])]
    cases = {f"p={p}, q={q}": (np.array(p), np.array(q)) for p, q in laws}

    def fault(got: Any, p: np.ndarray, q: np.ndarray) -> str:
        left = residual(p, q)
        right = left / left.sum()
        try:
            law = np.asarray(got, np.float64)
        except (TypeError, ValueError):
            return f"your function returned {type(got).__name__}; expected {len(p)} numbers"
        if law.shape != right.shape:
            return f"your function returned numbers of shape {law.shape}; expected {right.shape}"
        if np.allclose(law, right, rtol=1e-9, atol=1e-12):
            return ""
        told = "they do not sum to 1" if not np.isclose(law.sum(), 1) else f"the engine draws from {right.round(3).tolist()}"
        return f"your function says {law.round(3).tolist()}; {told}"

    return judge(answer, cases, fault, "the engine")


def check_length(answer: Answer) -> Verdict:
    """answer(acceptance, running): the number of guesses, 0 to 8, that brings the most tokens for its cost."""
    cases = [(0.9, 1), (0.6, 1), (0.05, 1), (0.9, 16), (0.6, 4), (1.0, 64), (0.0, 1)]
    truth = unlike(lambda acceptance, running: draft_length(acceptance, MOST, running), "the engine makes", "guesses")
    return judge(answer, named("acceptance, running", *cases), truth, "the engine")
