"""`up` with stand-in services in real processes: what it starts is reachable, and nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from stand_ins import Project, alive, wait_until

from labcore.core.errors import SetupFailed
from labcore.lab import processes, up
from labcore.lab.environment import ROOT

# A server that, like JupyterLab, has a child of its own.
SERVER = """
import os, subprocess, sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open(sys.argv[2], "w") as pids:
    print(os.getpid(), child.pid, file=pids)
print("I serve", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), SimpleHTTPRequestHandler).serve_forever()
"""
RUN = """
import signal, sys
from pathlib import Path
from labcore.lab import up
from labcore.lab.environment import Environment
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
server, *ports = sys.argv[2:]
services = [up.Service(f"Server {port}", [sys.executable, "-c", server, port, f"pids-{port}"], f"http://127.0.0.1:{port}/", {})
            for port in ports]
sys.exit(up.serve(Environment(Path(sys.argv[1])), services))
"""


class Running:
    """`up.serve` in a process of its own, with two stand-in services."""

    def __init__(self, project: Project) -> None:
        first = up.free_port(0)
        self.ports = [first, up.free_port(0, other=first)]
        self.root, self.out = project.root, project.root / "out"
        argv = [sys.executable, "-c", RUN, str(project.root), SERVER, *map(str, self.ports)]
        # a proxy must not stand between `up` and what it started; Ctrl-C reaches the group of a terminal
        variables = {**os.environ, "http_proxy": "http://127.0.0.1:9"}
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                argv, cwd=ROOT, env=variables, stdout=out, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
        wait_until(lambda: "Ctrl-C stops all of it." in self.out.read_text())

    def pids(self, port: int) -> list[int]:
        return [int(pid) for pid in (self.root / f"pids-{port}").read_text().split()]

    def end(self) -> tuple[int, str]:
        """Exit code and stderr, once everything that was started is gone."""
        _, stderr = self.process.communicate(timeout=20)
        pids = [pid for port in self.ports for pid in self.pids(port)]
        assert len(pids) == 4
        assert not any(map(alive, pids))
        return self.process.returncode, stderr


@pytest.fixture
def running(project: Project) -> Running:
    return Running(project)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything(running: Running, number: int) -> None:
    assert all(alive(pid) for port in running.ports for pid in running.pids(port))
    for port in running.ports:
        assert f"http://127.0.0.1:{port}/" in running.out.read_text()
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert direct.open(f"http://127.0.0.1:{port}/", timeout=5).status == 200
    os.killpg(running.process.pid, number)
    assert running.end() == (0, "")
    assert running.out.read_text().endswith("Stopped.\n")


def test_impatient_ctrl_c_leaves_nothing_either(running: Running) -> None:
    for _ in range(3):
        os.killpg(running.process.pid, signal.SIGINT)
    code, _ = running.end()
    assert code == 0


def test_a_service_that_dies_is_named_and_stops_the_other(running: Running) -> None:
    victim = running.ports[0]
    os.kill(running.pids(victim)[0], signal.SIGKILL)
    code, stderr = running.end()
    assert code == 1
    assert f"labcore: Server {victim} ended by itself (exit code -9); all was stopped." in stderr
    assert "I serve" in stderr
    assert f".labcore/server-{victim}.log" in stderr.replace(os.sep, "/")


def test_a_service_that_never_answers_is_named(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(up, "READY_SECONDS", 0.3)
    mute = up.Service("Mute", [sys.executable, "-c", "import time; time.sleep(60)"], f"http://127.0.0.1:{up.free_port(0)}/", {})
    assert up.serve(project.environment, [mute]) == 1
    assert "Mute did not answer within 0 s" in capsys.readouterr().err


def test_a_process_deaf_to_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    with (tmp_path / "log").open("w") as log:
        process = processes.start([sys.executable, "-c", code], log, tmp_path)
    wait_until(lambda: (tmp_path / "log").read_text())
    begun = time.monotonic()
    processes.stop([process], grace=0.2)
    assert process.returncode == -signal.SIGKILL
    assert 0.2 <= time.monotonic() - begun < 5


def test_ignored_sighup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with processes.on_signals(lambda number, frame: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def labcore(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labcore", *args], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
    )


def test_a_taken_port_is_one_line_and_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = labcore("up", "--no-browser", "--port", str(port))
        assert up.free_port(port) != port
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"labcore: port {port} cannot be had (")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_does_not_exist_is_refused(port: int) -> None:
    with pytest.raises(SetupFailed, match=f"port {port} does not exist; expected 1 to 65535"):
        up.asked_port(port)


def test_json_is_refused() -> None:
    result = labcore("up", "--json")
    assert (result.returncode, result.stdout) == (2, "")
    assert "unrecognized arguments: --json" in result.stderr


def test_a_free_port_is_the_preferred_one_unless_the_other_service_has_it() -> None:
    port = up.free_port(0)
    assert up.free_port(port) == port == up.asked_port(port)
    assert up.free_port(port, other=port) != port


def test_jupyterlab_is_protected_and_quiet(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/mine")
    project.environment.work.mkdir()
    service = up.jupyterlab(project.environment, 8888)
    token = service.url.rpartition("token=")[2]
    assert len(token) == 32
    assert service.variables["JUPYTER_TOKEN"] == token
    assert not any(token in arg for arg in service.argv)  # a command line is no secret
    assert token not in up.jupyterlab(project.environment, 8888).url
    assert {"--ip=127.0.0.1", "--port=8888", "--ServerApp.port_retries=0"} <= set(service.argv)
    assert ("--allow-root" in service.argv) == (os.geteuid() == 0)
    first, _, rest = service.variables["JUPYTER_CONFIG_PATH"].partition(os.pathsep)
    assert rest == "/mine"
    assert '"fetchNews": "false"' in Path(first, "labconfig", "default_setting_overrides.json").read_text()


@pytest.fixture
def book(project: Project) -> Project:
    """A project whose Jupyter Book is a stand-in that writes a page, unless a file `broken` is there."""
    for name in ("book/intro.md", "notebooks/01_first.ipynb", "_config.yml", "_toc.yml", "jupyter_book/__init__.py"):
        project.write(name)
    project.write(
        "jupyter_book/cli/main.py",
        """
        import pathlib, sys
        def main():
            html = pathlib.Path("_build/html")
            html.mkdir(parents=True, exist_ok=True)
            if pathlib.Path("broken").exists():
                sys.exit("a page is broken")
            (html / "index.html").write_text("book")
            with open("built", "a") as built:
                print(*sys.argv[1:], file=built)
        """,
    )
    project.environment.prepare()
    return project


def builds(project: Project) -> list[str]:
    path = project.root / "built"
    return path.read_text().splitlines() if path.exists() else []


def test_the_book_is_built_when_stale_only(book: Project) -> None:
    up.build_book(book.environment)
    up.build_book(book.environment)
    assert builds(book) == ["build ."]
    for number, name in enumerate(("notebooks/01_first.ipynb", "book/new.md", "_toc.yml"), start=2):
        book.write(name, "changed")
        up.build_book(book.environment)
        up.build_book(book.environment)
        assert len(builds(book)) == number, name
    book.write("labcore/engine.py", "no page")
    up.build_book(book.environment)
    assert len(builds(book)) == 4


def test_a_broken_page_does_not_keep_jupyterlab_from_starting(book: Project, capsys: pytest.CaptureFixture[str]) -> None:
    up.build_book(book.environment)
    before = book.write("book/intro.md", "good").read_text()
    up.build_book(book.environment)
    book.write("book/intro.md", "bad")
    book.write("broken")
    up.build_book(book.environment)
    assert "a page is broken" in (err := capsys.readouterr().err)
    assert "showing the book as it was" in err
    (book.root / "broken").unlink()
    book.write("book/intro.md", before)  # back to what was built, but the failed build may have touched the pages
    up.build_book(book.environment)
    assert len(builds(book)) == 3


def test_without_any_book_a_failed_build_is_an_error(book: Project) -> None:
    book.write("broken")
    with pytest.raises(SetupFailed, match="building the book failed"):
        up.build_book(book.environment)
