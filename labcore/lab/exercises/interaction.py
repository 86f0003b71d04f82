"""Checks on mechanisms that meet: the plainest setting that shows a fault, and the blocks that several answers hold.

>>> check_plainest(lambda fault: None).right
False
"""

from __future__ import annotations

from functools import cache

from labcore.kernels.registry import get_backend
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike
from labcore.lab.faults import FAULTS, SOUND, CopyForgetsV
from labcore.lab.matrix import Answers, Setting, run_cell, truth_of
from labcore.lab.oracle import TOKEN, sequence
from labcore.model.llama import LlamaModel
from labcore.model.weights import load_model

COPY = "copy that forgets V"
ASKED = (
    COPY, "lock that skips the matched node", "admission on the next chunk", "cache that never yields", "spin on empty steps",
)  # fmt: skip


@cache
def _model() -> LlamaModel:
    backend = get_backend(threads=1)  # the lab model is small
    return load_model("lab", backend=backend if backend.exact else "reference")


@cache
def _truth(setting: Setting) -> Answers:
    return truth_of(_model(), setting)


@cache
def finds(fault: str, setting: Setting) -> bool:
    """Whether this cell of the matrix notices the fault: by a rule that is broken, or, of copies, by an answer that differs."""
    if fault == COPY:
        return run_cell(_model(), setting, runner=CopyForgetsV).difference(_truth(setting.plainest)) != 0
    return bool(run_cell(None, setting, fault=FAULTS[fault]).broken)


def check_plainest(answer: Answer) -> Verdict:
    """answer(fault): a `Setting` that finds the fault while none of its `plainer` ones does."""

    def wrong(got: object, fault: str) -> str:
        if not isinstance(got, Setting):
            return f"your function returned {type(got).__name__}; expected a Setting"
        if not finds(fault, got):
            return f"{got} finds nothing"
        simpler = [plainer for plainer in got.plainer if finds(fault, plainer)]
        return f"{got} finds it, and so does {simpler[0]}" if simpler else ""

    return judge(answer, named("fault", *((name,) for name in ASKED)), wrong, "the matrix")


def check_held(answer: Answer) -> Verdict:
    """answer(num_prompt_tokens, n, block_size, num_own): blocks of n answers of which each has computed num_own tokens."""
    cases = [(32, 3, 16, 1), (40, 3, 16, 1), (40, 3, 16, 0), (40, 4, 16, 20), (7, 2, 8, 1), (64, 5, 8, 16)]
    return judge(answer, named("num_prompt_tokens, n, block_size, num_own", *cases), unlike(_held, "the engine holds", "blocks"),
                 "the engine")  # fmt: skip


def _held(num_prompt_tokens: int, n: int, block_size: int, num_own: int) -> int:
    scheduler, _ = SOUND.scheduler(num_blocks=200, block_size=block_size)
    one = sequence("one", num_prompt_tokens, max_tokens=num_own + 2)
    one.num_forks = n - 1
    scheduler.add(one)
    for _ in range(1 + num_own):
        plan = scheduler.schedule()
        scheduler.update(plan, [[TOKEN] * share.num_samples for share in plan.scheduled])
    return scheduler.cache.num_used
