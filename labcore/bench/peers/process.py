"""A peer in a process of its own: loads one engine, then answers one request at a time, and sleeps in between.

What libraries print goes to a file, whose last line is told where the process ends without an answer.

>>> with PeerProcess("labcore.bench.peers.ours", "lab", threads=2) as peer:      # doctest: +SKIP
...     peer.seconds(PREFILL, seed=0)
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from labcore.bench.timing import stopwatch
from labcore.bench.workload import Workload
from labcore.core.errors import LabError

F32, Q4_0 = "#f32", "#q4_0"  # what may stand behind the path of a model: its weights made anew in that form


class PeerFailed(LabError, RuntimeError):
    """A peer that is not installed, cannot load the model, or failed at a request."""


class Engine(Protocol):
    """What a peer's module has under the name `Engine`. Made from (model, threads); raises whatever it likes."""

    vocab_size: int
    versions: dict[str, str]  # of its packages, and what kind of numbers it computes with

    def run(self, workload: Workload, prompts: list[list[int]]) -> float:
        """Seconds of the prefill, or of a decode step (the mean of all), greedy."""
        ...


class Worker:
    """What can be asked of the process."""

    def load(self, module: str, model: str, threads: int) -> tuple[dict[str, str], float]:
        with stopwatch() as watch:
            self._engine = importlib.import_module(module).Engine(model, threads)
        return self._engine.versions, watch.seconds

    def seconds(self, workload: Workload, seed: int) -> float:
        return self._engine.run(workload, workload.prompts(self._engine.vocab_size, seed))

    def logits(self, token_ids: list[int]) -> np.ndarray:
        return self._engine.logits(token_ids)


def serve(pipe: Connection, log: Path) -> None:
    """The process. An answer is a result and "", or None and why there is none."""
    with log.open("wb") as sink:
        for stream in (1, 2):
            os.dup2(sink.fileno(), stream)
    worker = Worker()
    with contextlib.suppress(EOFError):  # nobody asks any more
        while True:
            name, arguments = pipe.recv()
            try:
                answer = getattr(worker, name)(*arguments), ""
            except Exception as error:  # a package that is missing, a file that it does not read: the parent lists the reason
                answer = None, f"{type(error).__name__}: {error}"
            pipe.send(answer)


class PeerProcess:
    """One engine in a process of its own. Raises PeerFailed with the reason, from the start on."""

    def __init__(self, module: str, model: str | Path, threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._log = Path(self._folder.name, "log")
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self._log), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.versions, self.load_seconds = self._ask("load", module, str(model), threads)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def seconds(self, workload: Workload, seed: int) -> float:
        return self._ask("seconds", workload, seed)

    def logits(self, token_ids: list[int]) -> np.ndarray:
        """The logits after every one of these tokens, float32 (tokens, vocabulary)."""
        return self._ask("logits", token_ids)

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((name, arguments))
            result, why = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
            last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
            raise PeerFailed(f"its process ended with code {self._process.exitcode}: {last[:300]}") from None
        if why:
            raise PeerFailed(why.strip().splitlines()[0][:300])
        return result

    def close(self) -> None:
        """End it: it stops where nobody can ask any more; one that does not is killed."""
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._folder.cleanup()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
