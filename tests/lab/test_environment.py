"""Set-up against real, bare virtual environments; only pip, the builder and the model are stand-ins."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from stand_ins import Project, alive, wait_until

from labcore.core.errors import SetupFailed
from labcore.lab.environment import ROOT, Environment, advise, compiler, fingerprint

ALL = ["requirements", "build", "labcore"]


def test_first_set_up_installs_builds_and_fetches(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.environment.prepare()
    pip = ["pip", "--disable-pip-version-check", "install"]
    assert project.calls() == [
        [*pip, "-r", "requirements.txt"],
        [*pip, "--no-build-isolation", "-e", "."],
        ["labcore", "fetch", "smollm2"],
    ]
    shown = capsys.readouterr().out
    for said in ("making .venv", "installing requirements.txt", "building labcore", "native kernels: built", "model smollm2"):
        assert said in shown
    assert "pip is content" in project.environment.log.read_text()


def test_unchanged_project_is_not_installed_again(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.environment.prepare()
    assert project.steps() == ALL
    project.environment.prepare()
    assert project.steps() == ["labcore"]
    assert ".venv is up to date" in capsys.readouterr().out


def test_a_change_runs_what_depends_on_it(project: Project) -> None:
    project.environment.prepare()
    project.calls()
    expected = {
        "cpp/kernel.cpp": ["build", "labcore"],
        "cpp/include/new.hpp": ["build", "labcore"],
        "pyproject.toml": ["build", "labcore"],
        "requirements.txt": ALL,
        "cpp/__pycache__/x.pyc": ["labcore"],
        "cpp/.swap": ["labcore"],
        "labcore/new.py": ["labcore"],
    }
    for name, steps in expected.items():
        project.write(name, "# changed\n")
        project.environment.prepare()
        assert project.steps() == steps, name


def test_failed_build_is_tried_again_without_installing_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.environment.prepare()
    project.write("cpp/kernel.cpp", "broken")
    project.calls()
    monkeypatch.setenv("FAKE_PIP", "1:ninja: build stopped: subcommand failed.")
    with pytest.raises(SetupFailed, match=r"building labcore failed \(exit code 1\): cpp/ did not build"):
        project.environment.prepare()
    monkeypatch.delenv("FAKE_PIP")
    project.environment.prepare()
    assert project.steps() == ["build", "build", "labcore"]


def test_moved_project_is_installed_again(project: Project) -> None:
    project.environment.prepare()
    project.calls()
    moved = project.root.rename(project.root.with_name("elsewhere"))
    there = Project(moved, project.calls_path)
    there.environment.prepare()
    assert there.steps() == ALL


@pytest.mark.parametrize("damage", ["marker", "python"])
def test_half_made_venv_is_made_anew(project: Project, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    project.environment.prepare()
    witness = project.write(".venv/witness")
    if damage == "marker":
        project.write(".venv/labcore-unfinished")
    else:
        project.environment.python.unlink()
    project.calls()
    project.environment.prepare()
    assert not witness.exists()
    assert project.steps() == ALL
    assert ".venv is half-made" in capsys.readouterr().out


def test_failed_first_install_leaves_the_venv_marked(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP", "1:ERROR")
    with pytest.raises(SetupFailed):
        project.environment.prepare()
    witness = project.write(".venv/witness")
    monkeypatch.delenv("FAKE_PIP")
    project.environment.prepare()
    assert not witness.exists()


def test_venv_made_by_hand_is_reused(project: Project) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project.environment.venv], check=True)
    witness = project.write(".venv/witness")
    project.environment.prepare()
    assert witness.exists()
    assert project.steps() == ALL


def test_venv_of_an_old_python_is_named_and_kept(project: Project) -> None:
    python = project.write(".venv/bin/python", "#!/bin/sh\necho 3.9.1\n")
    python.chmod(0o755)
    with pytest.raises(SetupFailed, match=r"\.venv holds Python 3\.9\.1; 3\.11 or newer is needed: delete \.venv"):
        project.environment.prepare()
    assert python.exists()


def without(project: Project, monkeypatch: pytest.MonkeyPatch, tool: str, inside_only: bool = False) -> None:
    """Make the tool unimportable, everywhere or in .venv alone."""
    condition = f"__import__('sys').prefix == {str(project.environment.venv)!r}" if inside_only else "True"
    init = Path(os.environ["PYTHONPATH"], tool, "__init__.py")
    init.write_text(f"if {condition}: raise ModuleNotFoundError(\"No module named '{tool}'\")\n")


def test_pip_comes_from_ensurepip(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    without(project, monkeypatch, "pip", inside_only=True)
    with pytest.raises(SetupFailed, match="installing requirements"):  # the stand-in has put no pip there
        project.environment.prepare()
    assert project.calls() == [["ensurepip", "--default-pip"]]


def test_without_ensurepip_the_hosts_pip_installs_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    without(project, monkeypatch, "ensurepip")
    without(project, monkeypatch, "pip", inside_only=True)
    with pytest.raises(SetupFailed, match="installing requirements"):
        project.environment.prepare()
    assert project.calls() == [["pip", "--python", str(project.environment.python), "install", "pip"]]


def test_with_neither_one_line_says_what_to_install(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    without(project, monkeypatch, "ensurepip")
    without(project, monkeypatch, "pip")
    with pytest.raises(SetupFailed, match=r"neither ensurepip nor pip 22\.3 or newer: `apt install python3-venv`"):
        project.environment.prepare()


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk is full: free"),
        ("Temporary failure in name resolution\nERROR: No matching distribution found for numpy>=2", "no network"),
        ("NewConnectionError('<...>: Failed to establish a new connection: [Errno 111] Connection refused')", "no network"),
        ("ERROR: No matching distribution found for numpy>=99", "pip found no numpy>=99"),
        ("error: externally-managed-environment", "the system manages this Python"),
        ("Could NOT find Python (missing: Interpreter Development.Module)\nCMake Error", "`apt install python3-dev`"),
        ("a.cpp:1:10: fatal error: Python.h: No such file or directory\nninja: build stopped", "`apt install python3-dev`"),
        ("from /usr/include/python3.11/Python.h:38\nerror: expected ';'\nninja: build stopped", "cpp/ did not build"),
        (
            "SSLError(SSLCertVerificationError(1, 'CERTIFICATE_VERIFY_FAILED'))\nMax retries exceeded",
            "certificate of pip's index",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/srv'", "no right to write there"),
        ("something nobody foresaw", "`python3 -m labcore doctor`"),
    ],
)
def test_each_failure_has_its_advice(output: str, advice: str) -> None:
    assert advice in advise(output)


def test_a_failed_step_is_one_line_and_shows_the_end_of_its_output(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = "Collecting numpy\nERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    monkeypatch.setenv("FAKE_PIP", f"1:{output}")
    with pytest.raises(SetupFailed) as raised:
        project.environment.prepare()
    message = str(raised.value)
    assert message.startswith("installing requirements.txt failed (exit code 1): the disk is full: free")
    assert message.endswith(str(Path(".labcore/setup.log")))
    assert "\n" not in message
    assert output in capsys.readouterr().err


def test_full_disk_is_said_before_anything_is_made(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_200_000_000))
    with pytest.raises(SetupFailed, match=r"1\.2 GB are free in .*; 4 GB are needed"):
        project.environment.prepare()
    assert not project.environment.venv.exists()


def test_folder_that_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(SetupFailed, match=r"has no pyproject\.toml"):
        Environment(tmp_path).prepare()


def test_a_file_in_the_way_is_one_line(project: Project) -> None:
    project.write(".labcore", "not a folder")
    with pytest.raises(SetupFailed, match=r"set-up failed: .*File exists"):
        project.environment.prepare()


def test_without_a_compiler_it_goes_on_in_pure_python(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    found = compiler()
    assert found is not None
    Path(found).unlink()
    (project.root / "labcore/kernels/_nanobind.py").unlink()
    project.environment.prepare()
    assert "built in pure Python: no C++ compiler" in capsys.readouterr().out
    # a compiler that comes later is noticed, and CMake's memory of its absence is gone
    project.calls()
    stale = project.write("build/CMakeCache.txt")
    Path(found).touch()
    Path(found).chmod(0o755)
    project.write("labcore/kernels/_nanobind.py")
    project.environment.prepare()
    assert project.steps() == ["build", "labcore"]
    assert not stale.exists()
    assert "native kernels: built" in capsys.readouterr().out


def test_with_a_compiler_kernels_that_do_not_load_are_an_error(project: Project) -> None:
    project.write("labcore/kernels/_nanobind.py", "raise ImportError('undefined symbol: lab_gemm')")
    with pytest.raises(SetupFailed, match="do not load: ImportError: undefined symbol: lab_gemm"):
        project.environment.prepare()


def test_two_set_ups_at_once_are_refused(project: Project) -> None:
    lock = project.write(".labcore/setup.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SetupFailed, match="another set-up runs in this folder"):
            project.environment.prepare()
    assert project.calls() == []


def test_pip_keeps_its_own_settings(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    monkeypatch.setenv("PIP_USER", "1")  # would be refused inside a virtual environment
    variables = project.environment.variables()
    assert variables["PIP_INDEX_URL"] == "https://index.invalid/simple"
    assert variables["PIP_USER"] == "0"
    assert variables["PATH"].split(os.pathsep)[0] == str(project.environment.python.parent)
    project.environment.prepare()
    assert not any("index" in arg or "//" in arg for call in project.calls() for arg in call)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_step_and_what_it_started(project: Project, number: int, code: int) -> None:
    script = f"""
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests themselves may run in the background
from labcore.lab import processes
from labcore.lab.environment import Environment
try:
    with processes.on_signals(processes.leave, ("SIGTERM",)):
        Environment(Path({str(project.root)!r})).prepare()
except KeyboardInterrupt:
    sys.exit(130)
"""
    variables = {**os.environ, "FAKE_PIP": "hang:downloading"}
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env=variables, stdout=subprocess.DEVNULL)
    pids_path = project.root / "pids"
    wait_until(lambda: pids_path.exists() and len(pids_path.read_text().split()) == 2)
    pids = [int(pid) for pid in pids_path.read_text().split()]
    assert all(map(alive, pids))
    process.send_signal(number)
    assert process.wait(20) == code
    wait_until(lambda: not any(map(alive, pids)))
    assert (project.environment.venv / "labcore-unfinished").exists()


def test_fingerprint_depends_on_names_contents_and_facts(tmp_path: Path) -> None:
    for name in ("b", "a", "sub/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    first = fingerprint(tmp_path, ["."], "fact")
    assert fingerprint(tmp_path, ["."], "fact") == first
    assert fingerprint(tmp_path, ["."], "other fact") != first
    (tmp_path / "a").rename(tmp_path / "d")
    assert fingerprint(tmp_path, ["."], "fact") != first
    (tmp_path / "d").rename(tmp_path / "a")
    assert fingerprint(tmp_path, ["."], "fact") == first
    assert fingerprint(tmp_path, ["missing"]) == fingerprint(tmp_path, ["also missing"])
