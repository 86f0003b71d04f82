"""The doctor against this machine, and against machines that lack something."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from labcore.cli import doctor
from labcore.cli.main import main
from labcore.lab.environment import ROOT

NAMES = [
    *("python", "compiler", "cmake", "ninja", "python headers", "native kernels", "packages"),
    *("model smollm2", "browser", "disk", "cores"),
]


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] == all(check["ok"] for check in document["checks"])
    return {check["name"]: check for check in document["checks"]}


def test_json_holds_what_is_printed() -> None:
    """Both in processes of their own, as people start it."""
    command = [sys.executable, "-m", "labcore", "doctor"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    document = json.loads(subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert [check["name"] for check in document["checks"]] == NAMES
    assert document["python"] == sys.executable
    for check in document["checks"]:
        assert check["found"] or not check["ok"]
        lines = [line for line in text.splitlines() if line[9:25].strip() == check["name"]]
        assert [line.split()[0] for line in lines] == ["ok" if check["ok"] else "MISSING"]
        assert check["ok"] or f"-> {check['advice']}" in text


def test_on_a_bare_machine_everything_missing_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LABCORE_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setitem(sys.modules, "labcore.kernels._nanobind", None)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    found = checks(capsys)
    advice = {name: check["advice"] for name, check in found.items() if not check["ok"]}
    for name, expected in {
        "compiler": "apt install g++",
        "cmake": "labcore up",
        "ninja": "labcore up",
        "python headers": "apt install python3-dev",
        "native kernels": "labcore up",
        "model smollm2": "labcore fetch smollm2",
        "browser": "apt install chromium",
    }.items():
        assert expected in str(advice[name])
    assert "_nanobind" in str(found["native kernels"]["found"])  # the reason


def test_the_model_is_found_by_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from labcore.loaders import zoo

    monkeypatch.setenv("LABCORE_CACHE", str(tmp_path))
    path = tmp_path / zoo.FILES["smollm2"].filename
    with path.open("wb") as file:
        file.truncate(zoo.FILES["smollm2"].size)
    assert checks(capsys)["model smollm2"]["found"] == str(path)
    path.write_bytes(b"part of it")
    assert not checks(capsys)["model smollm2"]["ok"]


def test_packages_missing_or_of_a_wrong_version_are_named(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("# a comment\nnumpy>=1  # fine\nnumpy<1\nlabcore-has-no-such-package\nalso-not; python_version < '3'\n")
    check = doctor._packages(path)
    assert not check.ok
    assert check.found == f"numpy {version('numpy')} is not <1; labcore-has-no-such-package is missing"
    path.write_text("numpy>=1\n\npytest\n")
    assert doctor._packages(path)[:3] == ("packages", True, "2 of requirements.txt")


def test_without_packaging_missing_packages_are_still_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    path = tmp_path / "requirements.txt"
    path.write_text("numpy>=1\nlabcore-has-no-such-package[extra]>=3\n")
    assert doctor._packages(path).found == "labcore-has-no-such-package is missing"


def test_another_python_than_the_laboratorys_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        doctor, "Environment", lambda: argparse.Namespace(venv=ROOT / "labcore")
    )  # any folder that is not sys.prefix
    check = doctor._python()
    assert not check.ok
    assert "ask .venv/bin/labcore doctor" in check.advice
