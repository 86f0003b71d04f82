"""Processes that leave nothing behind: each runs in its own group, and stopping it stops what it started.

Standard library only: `up` and `verify` need it before anything is installed. Limits: on Windows a group is stopped
by `taskkill`, at once and without grace.

    >>> process = start(["sleep", "60"])    # doctest: +SKIP
    >>> stop([process])                     # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any


def start(argv: Sequence[str], output: IO[Any], cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start argv as the leader of a new process group, its stdout and stderr in `output`."""
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, env=env, start_new_session=True
    )


def stop(processes: Sequence[subprocess.Popen[bytes]], grace: float = 10.0) -> None:
    """End every group: ask all at once, wait at most `grace` seconds in all, then kill what is left of each."""
    for process in processes:
        _end_group(process, signal.SIGTERM)
    deadline = time.monotonic() + grace
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        _end_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))  # also what outlived its leader
        process.wait()


def _end_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True, check=False)
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; macOS says the latter of a dead leader
            os.killpg(process.pid, number)


@contextlib.contextmanager
def on_signals(handler: Callable[[int, Any], None], names: Sequence[str] = ("SIGINT", "SIGTERM", "SIGHUP")) -> Iterator[None]:
    """Within the block the named signals call `handler`; a SIGHUP that was ignored (nohup) stays ignored."""
    before = {}
    for name in names:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and not (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def leave(number: int, frame: Any) -> None:
    """Signal handler: unwind, so that `finally` blocks stop what runs, and exit as the shell expects."""
    raise SystemExit(128 + number)
