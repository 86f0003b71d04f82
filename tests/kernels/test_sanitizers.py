"""The tests of the doors and the operators once more, in a build that ends the process on any fault of memory or arithmetic.

The address and undefined-behaviour sanitizers see what a test does not: a read one element past an array gives the right
answer almost always. The build has a folder of its own, named by what it was made from, so only a change in cpp/ builds anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ["test_doors.py", "test_operators.py", "test_batch_invariance.py", "test_sampling.py"]
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
OPTIONS = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DLAB_SANITIZE=ON", f"-DPython_EXECUTABLE={sys.executable}"]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sanitizers' run is written for Linux")


def command(*args: object, **more: object) -> str:
    run = subprocess.run([str(arg) for arg in args], capture_output=True, text=True, env={**os.environ, "PATH": PATH}, **more)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-8000:]
    return run.stdout


@pytest.fixture(scope="module")
def sanitized() -> Path:
    """The folder of the build; older ones are deleted."""
    if not shutil.which("cmake", path=PATH) or not shutil.which("g++"):
        pytest.skip("cmake or g++ is missing: `labcore doctor`")
    digest = hashlib.sha256(repr([OPTIONS, sys.version]).encode())
    for path in sorted(p for p in (ROOT / "cpp").rglob("*") if p.is_file()):
        digest.update(path.read_bytes())
    folder = ROOT / "build" / f"sanitized-{digest.hexdigest()[:16]}"
    for old in folder.parent.glob("sanitized-*"):
        if old != folder:
            shutil.rmtree(old)
    command("cmake", "-S", ROOT / "cpp", "-B", folder, *OPTIONS, "-DCMAKE_CXX_COMPILER=g++")
    command("cmake", "--build", folder)
    return folder


def preloaded() -> str:
    """The sanitizer's runtime must be in the process before Python; and the C++ runtime, whose exceptions it watches."""
    paths = [command("g++", f"-print-file-name={name}").strip() for name in ("libasan.so", "libstdc++.so")]
    if not Path(paths[0]).is_absolute():
        pytest.skip("g++ has no libasan here: `apt install libasan8`, or the package of your compiler")
    return " ".join(paths)


def test_no_fault_of_memory_or_arithmetic(sanitized: Path, tmp_path: Path) -> None:
    tree = tmp_path / "labcore"
    shutil.copytree(ROOT / "labcore", tree, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for library in sanitized.glob("*.so"):
        assert b"__asan_report_load" in library.read_bytes()
        shutil.copy(library, tree / "kernels")
    env = {
        **os.environ,
        "LD_PRELOAD": preloaded(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself never frees everything
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), sysconfig.get_path("purelib")]),
    }
    tests = [ROOT / "tests/kernels" / name for name in TESTS]
    # -s: pytest would keep what the sanitizer writes, and the process ends there
    options = ["-q", "-x", "-s", "-p", "no:cacheprovider", "--rootdir", ROOT, "-k", "not torch"]
    # -S: no .pth files, so that this tree is found and not the installed labcore
    run = subprocess.run(
        [sys.executable, "-S", "-m", "pytest", *map(str, options), *map(str, tests)],
        env=env, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-8000:]
    assert "ERROR: AddressSanitizer" not in run.stderr and "runtime error" not in run.stderr
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) > 300 and "failed" not in run.stdout
