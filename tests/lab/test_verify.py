"""`verify` in a project whose tools are stand-ins: all stages run, all failures are told, pytest has the last word."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from stand_ins import TOOL, Project, alive, wait_until

from labcore.lab import up
from labcore.lab.environment import ROOT

RUN = """
import sys
from pathlib import Path
from labcore.lab.environment import Environment
from labcore.lab import verify
from labcore.cli.main import main
verify.Environment = lambda: Environment(Path(sys.argv[1]))
sys.exit(main(["verify", *sys.argv[2:]]))
"""
STAGES = ["ruff", "importlinter", "mypy", "jupyter_book", "pytest"]
CLOSING = "==== 3 passed in 0.01s ===="


@pytest.fixture
def checked(project: Project) -> Project:
    for name in ("book/intro.md", "notebooks/01_first.ipynb", "_config.yml", "_toc.yml", "_build/html/index.html"):
        project.write(name)
    for name in ("ruff", "mypy", "pytest"):
        project.write(f"{name}/__init__.py")
        project.write(f"{name}/__main__.py", TOOL.format(name=name) + "sys.exit(main())\n")
    project.write("matplotlib/__init__.py")
    project.write("matplotlib/pyplot.py", "open('fonts', 'w').close()")
    project.write("jupyter_book/cli/main.py", TOOL.format(name="jupyter_book"))
    project.write("importlinter/cli.py", TOOL.format(name="importlinter") + "lint_imports_command = main\n")
    project.environment.prepare()
    project.calls()
    return project


def run(project: Project, *args: str, merged: bool = False, **fakes: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "FAKE_PYTEST": f"0:{CLOSING}", **{f"FAKE_{name.upper()}": value for name, value in fakes.items()}}
    return subprocess.run(
        [sys.executable, "-c", RUN, str(project.root), *args],
        cwd=ROOT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


def test_all_stages_run_and_pytest_closes(checked: Project) -> None:
    result = run(checked)
    assert result.returncode == 0, result.stderr
    calls = {call[0]: call[1:] for call in checked.calls()}
    assert [name for name in calls if name in STAGES] == STAGES
    assert calls["ruff"] == ["check", "."]
    assert calls["jupyter_book"] == ["build", "--all", "-q", "-W", "-n", "--keep-going", "."]
    assert calls["pytest"] == ["--nbval", "-ra", "-n", "2", "--dist", "loadfile"]
    assert (checked.root / "fonts").exists()
    lines = result.stdout.splitlines()
    assert lines[-1] == CLOSING
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("stage ")) : -1]
    assert [line.split()[:2] for line in table[1:7]] == [
        [stage, "ok"] for stage in ("set-up", "lint", "layers", "types", "book", "fonts")
    ]
    assert result.stderr == ""


def test_later_stages_run_after_a_failure_and_all_are_told(checked: Project) -> None:
    result = run(checked, merged=True, ruff="1:E501 too long", mypy="2:bad type")
    assert result.returncode == 1  # although pytest passed
    assert [call[0] for call in checked.calls() if call[0] in STAGES] == STAGES
    lines = result.stdout.splitlines()
    assert lines[-1] == CLOSING  # also where stderr goes to the same log
    assert {"E501 too long", "bad type", "labcore: failed before the tests: lint, types"} <= set(lines)
    assert sum(line.split()[1:2] == ["FAILED"] for line in lines) == 2


def test_json_is_one_document_and_the_exit_code_is_right(checked: Project) -> None:
    result = run(checked, "--json", mypy="2:bad type")
    document = json.loads(result.stdout)
    assert {stage["name"]: stage["ok"] for stage in document["stages"]} == {
        **dict.fromkeys(["set-up", "lint", "layers", "book", "fonts", "tests"], True),
        "types": False,
    }
    assert result.returncode == document["exit_code"] == 1
    assert CLOSING in result.stderr


def test_pytests_exit_code_is_kept_even_for_no_tests(checked: Project) -> None:
    result = run(checked, pytest="5:==== no tests ran ====")
    assert result.returncode == 5
    assert result.stdout.splitlines()[-1] == "==== no tests ran ===="


def test_a_failing_book_is_built_again_by_up_and_a_good_one_is_not(checked: Project) -> None:
    stamp, wanted = up.book_stamp(checked.environment)
    assert run(checked).returncode == 0
    assert stamp.read_text() == wanted
    assert run(checked, jupyter_book="1:WARNING: a link is broken").returncode == 1
    assert not stamp.exists()


def test_sigterm_stops_the_stage_and_what_it_started(checked: Project) -> None:
    variables = {**os.environ, "FAKE_MYPY": "hang:thinking"}
    process = subprocess.Popen([sys.executable, "-c", RUN, str(checked.root)], cwd=ROOT, env=variables, stdout=subprocess.DEVNULL)
    pids_path = checked.root / "pids"
    wait_until(lambda: pids_path.exists() and len(pids_path.read_text().split()) == 2)
    pids = [int(pid) for pid in pids_path.read_text().split()]
    assert all(map(alive, pids))
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    wait_until(lambda: not any(map(alive, pids)))
    assert "pytest" not in [call[0] for call in checked.calls()]
