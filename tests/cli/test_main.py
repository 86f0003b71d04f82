"""The dispatcher: exit codes, one line for bad input, one JSON document, and a start on a bare, old Python."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import labcore
from labcore.cli import main as main_module
from labcore.cli.main import COMMANDS, main
from labcore.core.errors import InvalidRequest
from labcore.lab.environment import ROOT

# These start before anything is installed, on Python 3.8 too: there `main` says what is needed.
BARE = [
    *("__init__.py", "__main__.py", "core/__init__.py", "core/errors.py"),
    *("cli/__init__.py", "cli/main.py", "cli/up.py", "cli/verify.py"),
    *("lab/__init__.py", "lab/environment.py", "lab/processes.py", "lab/up.py", "lab/verify.py"),
]


def command(monkeypatch: pytest.MonkeyPatch, run: object, **attributes: object) -> None:
    """Make `labcore probe` a command."""
    module = ModuleType("labcore.cli.probe", "A probe.")
    vars(module).update(run=run, add_arguments=lambda parser: parser.add_argument("--number", type=int), **attributes)
    monkeypatch.setitem(COMMANDS, "probe", "a probe")
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert main([]) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"labcore {labcore.__version__}\n"


def test_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ups"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"labcore: unknown command 'ups'; known: {', '.join(COMMANDS)}\n")


def test_json_prints_one_document_and_nothing_else(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(args: object) -> dict[str, object]:
        print("for people")
        return {"answer": "é", "half": 0.5}

    command(monkeypatch, run)
    assert main(["probe", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"answer": "é", "half": 0.5}
    assert out.isascii()
    assert err == "for people\n"
    assert main(["probe"]) == 0
    assert capsys.readouterr() == ("for people\n", "")


def test_json_is_refused_where_a_command_has_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command(monkeypatch, lambda args: 7, JSON=False)
    assert main(["probe", "--json"]) == 2
    assert "unrecognized arguments: --json" in capsys.readouterr().err
    assert main(["probe"]) == 7  # its own exit code


def test_an_error_on_purpose_is_one_line_and_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: object) -> dict[str, object]:
        raise InvalidRequest("number is 0; expected 1 or more")

    command(monkeypatch, run)
    for argv in (["probe"], ["probe", "--json"]):
        assert main(argv) == 2
        assert capsys.readouterr() == ("", "labcore: number is 0; expected 1 or more\n")
    with pytest.raises(InvalidRequest):
        main(["probe", "--debug"])


def test_an_error_by_mistake_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    command(monkeypatch, lambda args: {}["missing"])
    with pytest.raises(KeyError):
        main(["probe"])


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: object) -> dict[str, object]:
        raise KeyboardInterrupt

    command(monkeypatch, run)
    stdout = sys.stdout
    assert main(["probe", "--json"]) == 130
    assert sys.stdout is stdout


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def lacking(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'numpy.linalg'", name="numpy.linalg")

    monkeypatch.setattr(main_module.importlib, "import_module", lacking)
    assert main(["info"]) == 2
    assert "info needs the package 'numpy', which this Python lacks: run `python3 -m labcore up`" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    script = """
import sys, types
from labcore.cli import main
module = types.ModuleType("labcore.cli.probe")
module.add_arguments = lambda parser: None
module.run = lambda args: print("x" * 100_000)
main.COMMANDS["probe"] = ""
sys.modules[module.__name__] = module
sys.exit(main.main(["probe"]))
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (1, b"")


@pytest.mark.parametrize("name", ["up", "verify"])
def test_an_old_python_is_told_what_is_needed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 8, 18, "final", 0))
    assert main([name]) == 2
    expected = f"labcore: needs Python 3.11 or newer; this is 3.8. Install it and run `python3.11 -m labcore {name}`\n"
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize("name", BARE)
def test_it_parses_on_python_3_8_and_evaluates_no_newer_annotation(name: str) -> None:
    tree = ast.parse(Path(ROOT, "labcore", name).read_text(), feature_version=(3, 8))
    annotated = any(isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None for node in ast.walk(tree))
    postponed = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    assert postponed or not annotated


def test_bare_modules_need_the_standard_library_alone() -> None:
    names = ["labcore." + name.removesuffix(".py").replace("/", ".").replace(".__init__", "") for name in BARE]
    names = ["labcore" if name == "labcore.__init__" else name for name in names]
    script = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
roots = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(roots - set(sys.stdlib_module_names) - {{"__main__"}}), len(roots) > 20)
"""
    result = subprocess.run([sys.executable, "-S", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "['labcore'] True\n"


def test_every_command_that_is_here_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    here = [name for name in COMMANDS if Path(ROOT, "labcore", "cli", f"{name}.py").is_file()]
    assert {"up", "verify", "doctor"} <= set(here)
    for name in here:
        with pytest.raises(SystemExit) as raised:
            main([name, "--help"])
        assert raised.value.code == 0
        assert f"usage: labcore {name}" in capsys.readouterr().out


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str) -> None:
    """Whoever starts a command may have closed its standard streams; there is no traceback and no other exit code."""
    for arguments in ("info", "generate hi --model lab --max-tokens 2", "chat --model lab --max-tokens 2"):
        run = subprocess.run(
            ["sh", "-c", f'"$0" -m labcore {arguments} {closed}', sys.executable], capture_output=True, text=True, cwd=ROOT
        )
        assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line() -> None:
    for arguments in ("info", "generate hi --model lab --max-tokens 2", "generate hi --model lab --max-tokens 2 --json"):
        run = subprocess.run(
            ["sh", "-c", f'"$0" -m labcore {arguments} > /dev/full', sys.executable], capture_output=True, text=True, cwd=ROOT
        )
        assert run.returncode == 2 and "Traceback" not in run.stderr
        assert "No space left" in run.stderr.splitlines()[-1]
