"""A peer's process, as its parent sees it: started, asked, ended.

>>> with PeerProcess("labcore.bench.peers.ours", "lab", threads=2) as peer:      # doctest: +SKIP
...     peer.seconds(PREFILL, seed=0)
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from labcore.bench.workload import Workload
from labcore.core.errors import LabError

F32, Q4_0 = "#f32", "#q4_0"  # what may stand behind the path of a model: its weights made anew in that form


class PeerFailed(LabError, RuntimeError):
    """A peer that is not installed, cannot load the model, or failed at a request."""


class PeerProcess:
    """One engine in a process of its own. Raises PeerFailed with the reason, from the start on."""

    def __init__(self, module: str, model: str | Path, threads: int) -> None:
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        command = [sys.executable, "-m", "labcore.bench.peers.worker", module, str(model), str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8"
        )
        try:
            ready = self._answer()
        except BaseException:
            self.close()
            raise
        self.versions: dict[str, str] = ready["versions"]
        self.load_seconds: float = ready["loaded"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def seconds(self, workload: Workload, seed: int) -> float:
        size = [workload.batch, workload.prompt_tokens, workload.new_tokens]
        return float(self._ask(workload=size, seed=seed)["seconds"])

    def logits(self, token_ids: list[int], file: Path) -> None:
        """Write the logits after every one of these tokens to a .npy file, float32 (tokens, vocabulary)."""
        self._ask(logits=token_ids, file=str(file))

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise PeerFailed(self._last_words()) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(self._last_words())
        said = dict(json.loads(line))
        if "error" in said:
            raise PeerFailed(str(said["error"]).strip().splitlines()[0][:300])
        return said

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return f"its process ended with code {self._process.wait()}: {(lines or ['it said nothing'])[-1][:300]}"

    def close(self) -> None:
        """End it: it stops where its input does; one that does not is killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # it is gone, and something was still to be said
                    pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
