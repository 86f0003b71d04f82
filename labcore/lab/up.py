"""`labcore up`: set up, build the book when it is stale, then serve until Ctrl-C.

What is served is a list of `Service`; each gets its own process group and log, and when one ends, or on SIGINT, SIGTERM
or SIGHUP, all are stopped. Standard library only, and starts on Python 3.8.

    >>> up(open_browser=False)    # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from labcore.core.errors import SetupFailed
from labcore.lab import processes
from labcore.lab.environment import Environment, fingerprint

BOOK_SOURCES = ("book", "notebooks", "_config.yml", "_toc.yml", "labcore/lab/capabilities.py", "labcore/widgets/replay.py")
READY_SECONDS = 120.0  # a first start of JupyterLab from a cold disk takes long


class Service(NamedTuple):
    """A server that `up` runs: it is ready when `url` answers, and `url` is what the user opens."""

    name: str
    argv: Sequence[str]
    url: str
    variables: Mapping[str, str]

    @property
    def log_name(self) -> str:
        return self.name.lower().replace(" ", "-") + ".log"


def up(open_browser: bool = True, port: int | None = None) -> int:
    """Set up and serve; returns the exit code (0 when stopped on request). Raises SetupFailed."""
    environment = Environment()
    lab_port = free_port(8888) if port is None else asked_port(port)  # refused at once, not after minutes of set-up
    with processes.on_signals(processes.leave, ("SIGTERM", "SIGHUP")):
        environment.prepare()
        build_book(environment)
    services = [jupyterlab(environment, lab_port), book(environment, free_port(8000, other=lab_port))]
    return serve(environment, services, services[-1].url if open_browser else None)


def free_port(preferred: int, other: int | None = None) -> int:
    """The preferred port, or any free one where it is taken or is `other`."""
    with contextlib.suppress(OSError):
        if preferred != other:
            return _bind(preferred)
    return _bind(0)


def asked_port(port: int) -> int:
    """The port itself. Raises SetupFailed where it cannot be had."""
    if not 1 <= port <= 65535:
        raise SetupFailed(f"port {port} does not exist; expected 1 to 65535")
    try:
        return _bind(port)
    except OSError as error:
        raise SetupFailed(f"port {port} cannot be had ({error.strerror}): choose another, or leave --port out") from None


def _bind(port: int) -> int:
    with socket.socket() as probe:
        if os.name != "nt":  # as the servers do: connections of an earlier run may linger
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return int(probe.getsockname()[1])


def book_stamp(environment: Environment) -> tuple[Path, str]:
    """Where the hash of the rendered book's sources is kept, and what it is now."""
    return environment.root / "_build" / "labcore-stamp", fingerprint(environment.root, BOOK_SOURCES)


def build_book(environment: Environment) -> None:
    """Render the book if its sources changed since the last time. Raises SetupFailed if there is none to show."""
    stamp, wanted = book_stamp(environment)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)  # a build that fails half-way has changed pages
    try:
        environment.step("building the book", environment.script("jupyter_book.cli.main", "main", "build", "."))
        stamp.write_text(wanted)
    except SetupFailed as error:  # a page that is being written must not keep JupyterLab from starting
        if not (environment.root / "_build/html/index.html").is_file():
            raise
        print(f"labcore: {error}; showing the book as it was", file=sys.stderr, flush=True)


def jupyterlab(environment: Environment, port: int) -> Service:
    """JupyterLab on the project's folder, behind a fresh token, without its news pop-up."""
    settings = environment.work / "jupyter" / "labconfig" / "default_setting_overrides.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    settings.write_text(json.dumps({"@jupyterlab/apputils-extension:notification": quiet}))
    paths = [str(settings.parents[1]), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    token = secrets.token_hex(16)
    argv = [str(environment.python), "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    argv += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={environment.root}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        argv.append("--allow-root")
    # the token goes through the environment: a command line can be read by every user of the machine
    variables = {"JUPYTER_CONFIG_PATH": os.pathsep.join(paths), "JUPYTER_TOKEN": token}
    return Service("JupyterLab", argv, f"http://127.0.0.1:{port}/lab?token={token}", variables)


def book(environment: Environment, port: int) -> Service:
    """The rendered book as static files."""
    folder = str(environment.root / "_build" / "html")
    argv = [str(environment.python), "-m", "http.server", str(port), "--bind", "127.0.0.1", "-d", folder]
    return Service("Book", argv, f"http://127.0.0.1:{port}/", {})


def serve(environment: Environment, services: Sequence[Service], opened: str | None = None) -> int:
    """Run the services until a signal (returns 0), or until one ends by itself or is not ready in time (returns 1)."""
    signals: list[int] = []
    running: list[tuple[Service, subprocess.Popen[bytes]]] = []
    environment.work.mkdir(exist_ok=True)
    # signals only raise a flag: an exception between the start of a process and its record would leave an orphan
    with processes.on_signals(lambda number, frame: signals.append(number)):
        try:
            for service in services:
                with open(environment.work / service.log_name, "wb") as log:
                    variables = environment.variables(**service.variables)
                    running.append((service, processes.start(service.argv, log, environment.root, variables)))
            fault = _watch(running, signals, opened)
        finally:
            processes.stop([process for _, process in running])
    if fault is None:
        print("Stopped.", flush=True)
        return 0
    service, what = fault
    log_path = environment.work / service.log_name
    print(*log_path.read_text(errors="replace").splitlines()[-10:], sep="\n", file=sys.stderr)
    where = log_path.relative_to(environment.root)
    print(f"labcore: {service.name} {what}; all was stopped. The end of its log is above, the whole in {where}", file=sys.stderr)
    return 1


def _watch(
    running: Sequence[tuple[Service, subprocess.Popen[bytes]]], signals: Sequence[int], opened: str | None
) -> tuple[Service, str] | None:
    """Announce each service when it is ready and wait; returns the one at fault and why, None on a signal."""
    waiting = [service for service, _ in running]
    deadline = time.monotonic() + READY_SECONDS
    while not signals:
        for service, process in running:
            if process.poll() is not None:
                return service, f"ended by itself (exit code {process.returncode})"
        if waiting and _answers(waiting[0].url):
            service = waiting.pop(0)
            print(f"  {service.name:<12}{service.url}", flush=True)
            if not waiting:
                print("Ctrl-C stops all of it.", flush=True)
                _open(opened)
        elif waiting and time.monotonic() > deadline:
            return waiting[0], f"did not answer within {READY_SECONDS:.0f} s"
        time.sleep(0.1)
    return None


def _answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy has no business with 127.0.0.1
    try:
        with direct.open(url, timeout=2):
            return True
    except OSError:
        return False


def _open(url: str | None) -> None:
    # without a screen Python would start a browser in this terminal
    screen = sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if url and screen:
        webbrowser.open(url)
