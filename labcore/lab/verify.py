"""`labcore verify`: the same set-up as `up`, then every check that guards the project, each with its time.

A failing stage does not stop the later ones. The table of stages comes before the tests, so that the output ends in
pytest's own closing line. Standard library only, and starts on Python 3.8.

    >>> verify()    # doctest: +SKIP
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from labcore.lab import processes
from labcore.lab.environment import ONE_THREAD, Environment
from labcore.lab.up import book_stamp

TESTS = ("--nbval", "-ra", "-n", "2", "--dist", "loadfile")  # two processes; a file's tests share fixtures, a notebook its kernel
SHOWN_LINES = 200  # of a failing stage; its log has all


def stages(environment: Environment) -> dict[str, list[str]]:
    """The stages before the tests: name -> argv."""
    python = str(environment.python)
    return {
        "lint": [python, "-m", "ruff", "check", "."],
        "layers": environment.script("importlinter.cli", "lint_imports_command"),
        "types": [python, "-m", "mypy"],
        "book": environment.script("jupyter_book.cli.main", "main", "build", "--all", "-q", "-W", "-n", "--keep-going", "."),
        "fonts": [python, "-c", "import matplotlib.pyplot"],  # its cache: building it warns, and a warning fails a notebook
    }


def verify(environment: Environment | None = None) -> dict[str, Any]:
    """Run it all; returns the stages (name, ok, seconds) and the exit code: pytest's, or 1 where only an earlier stage failed.

    Raises SetupFailed.
    """
    environment = environment or Environment()
    begun = time.monotonic()
    with processes.on_signals(processes.leave, ("SIGTERM", "SIGHUP")):
        environment.prepare()
        table = [("set-up", 0, time.monotonic() - begun)]
        print("Verifying", flush=True)
        stamp, sources = book_stamp(environment)
        stamp.unlink(missing_ok=True)
        for name, argv in stages(environment).items():
            begun = time.monotonic()
            code, output = environment.run(name, argv)
            table.append((name, code, time.monotonic() - begun))
            if code:
                print(*output.splitlines()[-SHOWN_LINES:], sep="\n", flush=True)
            elif name == "book":
                stamp.write_text(sources)  # `up` need not build it again
        failed = [name for name, code, _ in table if code]
        print(f"\n{'stage':<10}{'result':<10}{'seconds':>8}")
        for name, code, seconds in table:
            print(f"{name:<10}{'FAILED' if code else 'ok':<10}{seconds:>8.1f}")
        print(f"{'tests':<10}follow: pytest {' '.join(TESTS)}\n", flush=True)
        if failed:  # said before the tests: their closing line is the last one
            print(f"labcore: failed before the tests: {', '.join(failed)}", file=sys.stderr, flush=True)
        begun = time.monotonic()
        code = _tests(environment)
        table.append(("tests", code, time.monotonic() - begun))
    return {
        "stages": [{"name": name, "ok": not code, "seconds": round(seconds, 1)} for name, code, seconds in table],
        "exit_code": code or int(bool(failed)),
    }


def _tests(environment: Environment) -> int:
    # not in a group of its own: Ctrl-C shall reach pytest, which then says what it was doing
    argv = [str(environment.python), "-m", "pytest", *TESTS]
    out = sys.stderr if sys.stdout is sys.stderr else None  # --json: stdout is for the document
    variables = environment.variables(**ONE_THREAD)
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, cwd=environment.root, env=variables)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
