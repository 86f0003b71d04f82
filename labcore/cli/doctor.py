"""What this machine has for the laboratory, what is missing, and how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

from labcore.core.errors import LabError
from labcore.core.machine import num_cores
from labcore.kernels import build
from labcore.lab.environment import DISK_BYTES, ROOT, Environment, compiler
from labcore.loaders import zoo

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Check(NamedTuple):
    """One thing looked at: whether it is there, what was found, and how to get it where it is not."""

    name: str
    ok: bool
    found: str
    advice: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> dict[str, Any]:
    checks = [
        _python(),
        _tool(
            "compiler",
            compiler(),
            "`apt install g++`, `xcode-select --install` or the Visual Studio Build Tools; else pure Python",
        ),
        _tool("cmake", _which("cmake"), "`python3 -m labcore up` (requirements.txt brings it)"),
        _tool("ninja", _which("ninja"), "`python3 -m labcore up` (requirements.txt brings it)"),
        _headers(),
        _native(),
        _packages(ROOT / "requirements.txt"),
        _tool("model smollm2", str(zoo.cached_path("smollm2") or "") or None, "`labcore fetch smollm2` (98 MB)"),
        _tool(
            "browser",
            next(filter(None, map(shutil.which, BROWSERS)), None),
            "`apt install chromium`: only the tests of pages use it",
        ),
        _disk(),
        Check("cores", True, str(num_cores()), ""),
    ]
    for check in checks:
        print(f"{'ok' if check.ok else 'MISSING':<9}{check.name:<16}{check.found}")
        if not check.ok:
            print(f"{'':<25}-> {check.advice}")
    missing = [check.name for check in checks if not check.ok]
    print(f"\n{len(checks) - len(missing)} of {len(checks)} are there" + (f"; missing: {', '.join(missing)}" if missing else ""))
    return {"ok": not missing, "python": sys.executable, "checks": [check._asdict() for check in checks]}


def _python() -> Check:
    venv = Environment().venv
    inside = Path(sys.prefix).resolve() == venv.resolve()
    found = f"{sys.version.split()[0]} ({sys.executable})"
    if venv.is_dir() and not inside:  # the rest of the report would speak of another Python than the laboratory's
        return Check("python", False, found, "this is not the laboratory's Python: ask .venv/bin/labcore doctor instead")
    return Check("python", True, found, "")


def _tool(name: str, found: str | None, advice: str) -> Check:
    return Check(name, found is not None, found or "not found", advice)


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]))


def _headers() -> Check:
    header = Path(sysconfig.get_path("include"), "Python.h")
    return Check("python headers", header.is_file(), str(header), "`apt install python3-dev` (Debian, Ubuntu)")


def _native() -> Check:
    """Compiled files of another machine are deleted, and said; then every door is opened."""
    found = build.remove_mismatched()
    try:
        doors = {door: build.load(module) for door, module in build.DOORS.items()}
    except LabError as error:
        return Check(
            "native kernels", False, "; ".join([*found, str(error)]), "`python3 -m labcore up` builds them, with a compiler"
        )
    return Check("native kernels", True, "; ".join([*found, f"{', '.join(doors)} in {build.find('_c_api').parent}"]), "")


def _packages(requirements: Path) -> Check:
    """Whether what requirements.txt asks for is installed, in the versions it asks for."""
    wanted = [line.partition("#")[0].strip() for line in requirements.read_text().splitlines()]
    problems = [problem for line in wanted if line and (problem := _problem(line))]
    advice = "`python3 -m labcore up`, or `pip install -r requirements.txt` in .venv"
    return Check("packages", not problems, "; ".join(problems) or f"{sum(map(bool, wanted))} of requirements.txt", advice)


def _problem(line: str) -> str | None:
    try:
        from packaging.requirements import Requirement  # comes with pytest; a bare Python lacks it
    except ImportError:
        name, applies, specifier = re.split(r"[^\w.-]", line)[0], True, None
    else:
        requirement = Requirement(line)
        name, specifier = requirement.name, requirement.specifier
        applies = requirement.marker is None or requirement.marker.evaluate()
    if not applies:
        return None
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is missing"
    if specifier is not None and not specifier.contains(version, prereleases=True):
        return f"{name} {version} is not {specifier}"
    return None


def _disk() -> Check:
    free = shutil.disk_usage(ROOT).free
    needed = 0 if Environment().venv.is_dir() else DISK_BYTES
    return Check("disk", free >= needed, f"{free / 1e9:.0f} GB free", f"{DISK_BYTES / 1e9:.0f} GB are needed to set up")
