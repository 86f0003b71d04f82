"""Triton's kernels: right in the interpreter, compiled for a Hopper GPU, and honest where neither can run.

Each of the two needs a process of its own: what TRITON_INTERPRET said when triton was imported holds until the process ends.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labcore.core.errors import BackendUnavailable
from labcore.kernels.registry import backend_statuses, get_backend

HERE = Path(__file__).parent
KERNELS = {path.stem for path in (HERE.parents[1] / "labcore/kernels/triton_kernels").glob("*.py")} - {
    "__init__", "backend", "checks", "offline",
}  # fmt: skip
TENSOR_CORES = {
    "flash_attention": ["wgmma.mma_async"],
    "int8_matmul": ["wgmma.mma_async"],
    "paged_attention of chunks": ["wgmma.mma_async"],
    "paged_attention of decodes": ["mma.sync"],  # 16 rows: wgmma begins at 64
}


def python(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, env=inherited | environment, cwd=HERE.parents[1]
    )


def test_every_kernel_in_the_interpreter() -> None:
    """The cases of `triton_cases.py`, all of them: against float64, on odd shapes, NaN in unused slots, bad arguments named."""
    argv = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning", str(HERE / "triton_cases.py")]
    run = python(*argv, TRITON_INTERPRET="1")
    assert run.returncode == 0, run.stdout + run.stderr
    passed = re.search(r"^(\d+) passed in ", run.stdout, re.M)  # nothing skipped, nothing expected to fail
    assert passed and int(passed[1]) > 100, run.stdout


def test_every_kernel_compiles_for_hopper_without_a_gpu(tmp_path: Path) -> None:
    """To machine code, from a cold cache: loads of 16 bytes everywhere, tensor cores where there is a product."""
    run = python("-m", "labcore.kernels.triton_kernels.offline", "bf16", "fp32", TRITON_CACHE_DIR=str(tmp_path))
    assert run.returncode == 0, run.stderr
    facts = [json.loads(line) for line in run.stdout.splitlines()]
    for dtype in ("bf16", "fp32"):
        assert {made["kernel"].partition(" ")[0] for made in facts if made["dtype"] == dtype} >= KERNELS
    for made in facts:
        assert made["cubin_bytes"] > 1000 and made["loads_of_16_bytes"] > 0, made
        assert made["shared_bytes"] <= 227 << 10, made  # what a program may have on Hopper
        wide = made["dtype"] == "fp32" and made["kernel"] != "int8_matmul"  # plain multiply-adds: no bit is lost
        assert made["tensor_core"] == ([] if wide else TENSOR_CORES.get(made["kernel"], [])), made


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device: the backend runs")
def test_without_a_gpu_the_registry_says_why() -> None:
    status = {s.name: s for s in backend_statuses()}["triton"]
    assert (status.available, status.reason) == (False, "interpreter only: no CUDA device")
    with pytest.raises(BackendUnavailable, match="interpreter only: no CUDA device"):
        get_backend("triton")


def test_without_triton_the_registry_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("labcore.kernels.triton_kernels")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    reason = {s.name: s for s in backend_statuses()}["triton"].reason
    assert reason.startswith("not installed (import of triton halted") and "pip install torch triton" in reason


def test_a_cpu_tensor_without_the_interpreter_is_refused() -> None:
    code = (
        "import torch; from labcore.kernels.triton_kernels.softmax import softmax\n"
        "from labcore.kernels.triton_kernels.backend import TritonBackend\n"
        "for call in (lambda: softmax(torch.ones(2, 3)), lambda: TritonBackend('cpu')):\n"
        "    try: call()\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    first, second = python("-c", code).stdout.splitlines()
    assert first.startswith("BackendUnavailable softmax: x is on cpu, where Triton compiles nothing")
    assert second.startswith("BackendUnavailable on a CPU Triton is interpreted: set TRITON_INTERPRET=1")
