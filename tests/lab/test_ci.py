"""`.ci/run` on a machine whose apt-get and python3 are stand-ins: what it installs, and that it ends as `verify` ends."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from labcore.lab.environment import ROOT


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with the plain tools that the script uses, a root user, and a python3 that passes for `verify`."""
    bin_path = tmp_path / "bin"
    bin_path.mkdir()
    for name in ("bash", "dirname", "mktemp", "tail", "rm"):
        (bin_path / name).symlink_to(str(shutil.which(name)))
    fake(bin_path, "id", "echo 0")
    fake(bin_path, "python3", 'echo "$@"; echo "in $PWD"; echo "==== 9 passed in 1s ===="; exit 3')
    return bin_path


def fake(bin_path: Path, name: str, script: str) -> None:
    path = bin_path / name
    path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    path.chmod(0o755)


def run(bin_path: Path) -> list[str]:
    """Lines of the log, stdout and stderr together; the exit code is always that of `verify`."""
    assert os.access(ROOT / ".ci/run", os.X_OK)
    result = subprocess.run(
        [bin_path / "bash", ROOT / ".ci/run"],
        cwd=bin_path,
        env={"PATH": str(bin_path), "CI": "true"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=20,
        check=False,
    )
    lines = result.stdout.splitlines()
    assert result.returncode == 3
    assert lines[-3:] == ["-m labcore verify", f"in {ROOT}", "==== 9 passed in 1s ===="]
    return lines[:-3]


def test_it_installs_what_is_missing(machine: Path) -> None:
    fake(machine, "apt-get", f'echo "$@" >> {machine}/asked')
    assert run(machine) == ["installing chromium g++"]
    expected = ["update", "install -y --no-install-recommends chromium g++"]
    assert (machine / "asked").read_text().splitlines() == expected


def test_it_installs_nothing_that_is_there(machine: Path) -> None:
    for name in ("chromium", "c++", "apt-get"):
        fake(machine, name, "exit 1")
    assert run(machine) == []


def test_a_failing_apt_get_is_told_and_is_not_fatal(machine: Path) -> None:
    fake(machine, "apt-get", 'echo "E: no such mirror"; exit 100')
    assert run(machine) == ["installing chromium g++", "E: no such mirror", "could not install chromium g++: going on without"]


def test_without_root_it_says_what_is_missing(machine: Path) -> None:
    fake(machine, "apt-get", "exit 1")
    fake(machine, "id", "echo 1000")
    assert run(machine) == ["missing here, and not installed (needs root and apt-get): chromium g++"]
