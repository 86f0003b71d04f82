"""Checks on what a door must look at: numpy and `labcore.kernels.build` say what is right.

>>> check_contiguous(lambda shape, strides, itemsize: None).right
False
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import as_strided

from labcore.kernels.build import targets_of
from labcore.lab.exercises.verdict import Answer, Verdict, judge, named, unlike


def check_contiguous(answer: Answer) -> Verdict:
    """answer(shape, strides, itemsize): whether the numbers lie one after another in C order; strides in bytes."""
    cases = [
        ((4, 8), (32, 4), 4), ((4, 8), (4, 16), 4), ((8,), (8,), 4), ((2, 3, 4), (96, 32, 8), 8), ((8,), (-4,), 4),
        ((4, 8), (0, 4), 4), ((), (), 4), ((1, 8), (999, 4), 4), ((4, 1), (4, 0), 4), ((0, 3), (7, 7), 4),
    ]  # fmt: skip

    def slip(got: object, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> str:
        if 0 in shape:
            return ": there are no numbers that could lie elsewhere"
        return ": along an axis of length 1 nobody ever takes a step" if 1 in shape else ""

    return judge(answer, named("shape, strides, itemsize", *cases), unlike(_contiguous, "numpy", slip=slip), "numpy")


def check_header(answer: Answer) -> Verdict:
    """answer(data): the machine that an ELF file was built for: "x86", "x86_64", "aarch64" or "s390x"."""
    kinds = {"x86_64": (2, 1, 62), "aarch64": (2, 1, 183), "x86": (1, 1, 3), "s390x": (2, 2, 22)}
    cases = {f"the first bytes of a file for {name}": (_elf(*kind),) for name, kind in kinds.items()}
    return judge(answer, cases, unlike(_machine, "the doctor"), "the doctor")


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    return bool(as_strided(np.zeros(1, f"V{itemsize}"), shape, strides).flags.c_contiguous)  # looked at, never read


def _elf(bits: int, order: int, machine: int) -> bytes:
    numbers = struct.pack(("<" if order == 1 else ">") + "HH", 3, machine)
    return b"\x7fELF" + bytes([bits, order, 1, *[0] * 9]) + numbers + bytes(108)


def _machine(data: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(data)
        return targets_of(path)[0].machine
