"""Stand-ins: a throw-away project, and tools in it that write down how they were called."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from labcore.lab.environment import Environment

# Stand-in for a tool. What it prints and its exit code come from the environment: FAKE_PIP="exit code:text".
TOOL = """
import json, os, subprocess, sys, time
name = {name!r}
with open(os.environ["FAKE_CALLS"], "a") as calls:
    calls.write(json.dumps([name, *sys.argv[1:]]) + chr(10))
def main():
    code, _, text = os.environ.get("FAKE_" + name.upper(), "0:" + name + " is content").partition(":")
    print(text, flush=True)
    if code == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(child.pid, os.getpid(), file=open("pids", "w"), flush=True)
        time.sleep(60)
    return int(code)
"""


class Project:
    """A project folder, its Environment, and what the stand-ins were asked to do."""

    def __init__(self, root: Path, calls: Path) -> None:
        self.root, self.calls_path = root, calls
        self.environment = Environment(root)

    def write(self, name: str, text: str = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def calls(self) -> list[list[str]]:
        """The calls since the last time this was asked."""
        lines = self.calls_path.read_text().splitlines() if self.calls_path.exists() else []
        self.calls_path.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def steps(self) -> list[str]:
        """The same, in short."""
        short = {"-r": "requirements", "-e": "build"}
        return [next((short[arg] for arg in call if arg in short), call[0]) for call in self.calls()]


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended but was not reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Poll; fails the test when it takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)
