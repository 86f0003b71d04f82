"""The one environment of the laboratory: `.venv` in the project's folder, made, mended or reused by `up` and `verify`.

A stamp in `.venv` holds a hash of what was installed and built; while it agrees, nothing runs again. pip's own settings
(index, proxy, certificates) are honoured: none is passed. Standard library only, and starts on Python 3.8.

    >>> environment = Environment()    # doctest: +SKIP
    >>> environment.prepare()          # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from labcore.core.errors import SetupFailed
from labcore.lab import processes

try:
    import fcntl
except ImportError:  # Windows: two set-ups at once are not kept apart there
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parents[2]
DISK_BYTES = 4 * 10**9  # .venv and what pip unpacks on the way

# What a failed tool says -> what to do. The first that matches wins: causes stand before their consequences.
ADVICE = (
    (r"No space left on device|Errno 28|not enough space", "the disk is full: free 4 GB (pip unpacks in TMPDIR too)"),
    (r"externally-managed-environment", "the system manages this Python, and pip refused to write there: delete .venv"),
    (
        r"No module named '?(ensurepip|pip|venv)\b|no such option: --python",
        "this Python has neither ensurepip nor pip 22.3 or newer: `apt install python3-venv` (Debian, Ubuntu)",
    ),
    (
        r"Could NOT find Python|Python\.h: No such file|missing: Python\w*_INCLUDE_DIR",
        "the headers of Python are missing: `apt install python3-dev` (Debian, Ubuntu)",
    ),
    (r"CERTIFICATE_VERIFY_FAILED|SSLError", "the certificate of pip's index is not trusted: set `cert` (`pip config list`)"),
    (
        r"name resolution|Name or service not known|nodename nor servname|getaddrinfo failed|Network is unreachable"
        r"|No route to host|Connection refused|NewConnectionError|Max retries exceeded|ConnectTimeout|ReadTimeout|ProxyError",
        "no network, or pip's index cannot be reached: check the connection, the proxy and `pip config list`",
    ),
    (r"DO NOT MATCH THE HASHES|incomplete-download|IncompleteRead", "a download arrived damaged"),
    (
        r"No matching distribution found for (?P<name>\S+)",
        "pip found no {name}: its index lacks it, or hides behind an error above",
    ),
    (r"ninja: build stopped|CMake Error|CMake (configuration|build) failed", "cpp/ did not build: mend what its message says"),
    (r"Permission denied|Read-only file system", "no right to write there: take a folder that is yours"),
)


def advise(output: str, otherwise: str = "its end is above; `python3 -m labcore doctor` says what is missing here") -> str:
    """What to do about a failed tool, in one line, from what it printed."""
    for pattern, advice in ADVICE:
        match = re.search(pattern, output)
        if match:
            return advice.format(**match.groupdict()) + ", then run again"
    return otherwise


def compiler() -> str | None:
    """The C++ compiler that CMake will find, or None."""
    names = [os.environ.get("CXX", "").split(" ")[0], "c++", "g++", "clang++", "icpx", "cl"]
    return next(filter(None, (shutil.which(name) for name in names if name)), None)


def fingerprint(root: Path, names: Sequence[str], *facts: object) -> str:
    """Hash of the files below the named paths (relative names and contents; hidden files and caches apart) and of the facts."""
    digest = hashlib.sha256(repr(facts).encode())
    for name in names:
        path = root / name
        files = [file.relative_to(root) for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
        for file in sorted(files, key=Path.as_posix):
            if not any(part.startswith(".") or part == "__pycache__" for part in file.parts):
                digest.update(file.as_posix().encode() + b"\0" + hashlib.sha256((root / file).read_bytes()).digest())
    return digest.hexdigest()


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


# A library that spins on every core makes other programs wait; the threads of the kernels are the ones that count here.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Environment:
    """`.venv` of one project folder, and the way to run things in it."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv.joinpath(*(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
        self.work = root / ".labcore"
        self.log = self.work / "setup.log"
        self._unfinished = self.venv / "labcore-unfinished"
        self._stamp = self.venv / "labcore-stamp.json"

    # --- running in it

    def variables(self, **more: str) -> dict[str, str]:
        """Environment variables of a child: .venv first on PATH."""
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        ours = {"PATH": path, "VIRTUAL_ENV": str(self.venv), "PIP_USER": "0", "PIP_NO_INPUT": "1"}
        return {name: value for name, value in {**os.environ, **ours, **more}.items() if name != "PYTHONHOME"}

    def script(self, module: str, function: str, *args: str) -> list[str]:
        """argv of a console script by its entry point: unlike .venv/bin/NAME it survives a moved folder."""
        return [str(self.python), "-c", f"import sys; from {module} import {function} as main; sys.exit(main())", *args]

    def run(self, title: str, argv: Sequence[str]) -> tuple[int, str]:
        """Run one command, its output in the log; shows title, seconds and its last line. Returns exit code and output."""
        self.work.mkdir(exist_ok=True)
        begun = shown = time.monotonic()
        live = sys.stdout.isatty()
        print(f"  {title} ...", end="" if live else "\n", flush=True)
        with open(self.log, "ab") as sink:
            offset = sink.tell()
            process = processes.start(argv, sink, cwd=self.root, env=self.variables(NO_COLOR="1"))
            try:
                while not _ended(process, 0.2):
                    now = time.monotonic()
                    if live or now - shown >= 15:
                        shown = now
                        self._progress(title, now - begun, self._logged(offset), live)
            finally:
                if process.poll() is None:
                    processes.stop([process])
        text = self._logged(offset)
        result = "done" if process.returncode == 0 else "FAILED"
        print(f"\r\x1b[K  {title}: {result}" if live else f"    {result}", f"({time.monotonic() - begun:.1f} s)", flush=True)
        return process.returncode, text

    def step(self, title: str, argv: Sequence[str]) -> None:
        """Run one command that must succeed. Raises SetupFailed with one line of advice, the output's end on stderr."""
        code, text = self.run(title, argv)
        if code:
            plain = re.sub(r'(?m)^ +File ".*\n( {4,}.*\n)*', "", text)  # a traceback's frames say nothing to the one who sets up
            print(*plain.splitlines()[-20:], sep="\n", file=sys.stderr)
            raise SetupFailed(f"{title} failed (exit code {code}): {advise(text)}. All of it: {self.log.relative_to(self.root)}")

    def _logged(self, offset: int) -> str:
        with open(self.log, "rb") as log:
            log.seek(offset)
            return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", log.read().decode(errors="replace"))  # colours

    @staticmethod
    def _progress(title: str, seconds: float, text: str, live: bool) -> None:
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        line = f"  {title} ... {seconds:.0f} s  {last}".encode("ascii", "replace").decode()  # any terminal can show that
        line = line[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[K{line}" if live else f"  {line}", end="" if live else "\n", flush=True)

    # --- making it

    def prepare(self) -> None:
        """Bring .venv, the native kernels and the model up to date. Raises SetupFailed."""
        if not (self.root / "pyproject.toml").is_file():
            raise SetupFailed(f"{self.root} has no pyproject.toml; expected a clone of the project: run labcore from one")
        print(f"Setting up {self.venv}", flush=True)
        try:
            self.work.mkdir(exist_ok=True)
            with self._alone():
                self.log.write_bytes(b"")
                self._install(self._make())
                self.step("model smollm2", [str(self.python), "-m", "labcore", "fetch", "smollm2"])
        except OSError as error:
            raise SetupFailed(f"set-up failed: {error}: {advise(str(error), 'see the error')}") from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with open(self.work / "setup.lock", "w") as lock:
            if fcntl is not None:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise SetupFailed("another set-up runs in this folder: wait until it ends, then run again") from None
            yield

    def _version(self) -> str | None:
        """Version of .venv's Python, or None where it does not run."""
        try:
            command = [str(self.python), "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]
            return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    def _make(self) -> str:
        """.venv with a pip in it; returns the version of its Python."""
        version = self._version()
        if version is None or self._unfinished.exists():
            if self.venv.exists():
                print("  .venv is half-made (a set-up did not finish, or its Python does not run): making it anew", flush=True)
                self.python.unlink(missing_ok=True)  # first, so that a deletion cut short does not leave what looks whole
                shutil.rmtree(self.venv)
            free = shutil.disk_usage(self.root).free
            if free < DISK_BYTES:
                need = f"{DISK_BYTES / 1e9:.0f} GB"
                raise SetupFailed(f"{free / 1e9:.1f} GB are free in {self.root}; {need} are needed: free some and run again")
            self.venv.mkdir()
            self._unfinished.touch()
            # pip comes apart, in the next step, because Debian's Python has no ensurepip to put it there
            self.step("making .venv", [self._host_python(), "-m", "venv", "--without-pip", str(self.venv)])
            version = self._version()
        if version is None or tuple(map(int, version.split("."))) < (3, 11):
            raise SetupFailed(f".venv holds Python {version}; 3.11 or newer is needed: delete .venv and run again")
        if not self._imports("pip"):
            if self._imports("ensurepip"):
                self.step("adding pip", [str(self.python), "-m", "ensurepip", "--default-pip"])
            else:
                print("  this Python has no ensurepip: its own pip shall install one in .venv", flush=True)
                self.step("adding pip", [self._host_python(), "-m", "pip", "--python", str(self.python), "install", "pip"])
        return version

    def _imports(self, module: str) -> bool:
        return (
            subprocess.run([str(self.python), "-c", f"import {module}"], stderr=subprocess.DEVNULL, check=False).returncode == 0
        )

    def _host_python(self) -> str:
        """The Python that makes .venv: never the one in .venv, which may just have been deleted."""
        inside = Path(sys.prefix).resolve() == self.venv.resolve()
        return getattr(sys, "_base_executable", sys.executable) if inside else sys.executable

    def _install(self, version: str) -> None:
        compiler_here = compiler() is not None
        place = (version, str(self.root))  # another Python or a moved folder: what was installed is not found any more
        wanted = {
            "requirements": fingerprint(self.root, ["requirements.txt"], place),
            "build": fingerprint(self.root, ["requirements.txt", "pyproject.toml", "cpp"], place),
            "compiler": compiler_here,
        }
        try:
            done = json.loads(self._stamp.read_text())
        except (OSError, ValueError):
            done = {}
        if done == wanted:
            print("  .venv is up to date", flush=True)
            return
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "install"]
        if done.get("requirements") != wanted["requirements"]:
            self._stamp.unlink(missing_ok=True)
            self.step("installing requirements.txt", [*pip, "-r", "requirements.txt"])
            self._unfinished.unlink(missing_ok=True)
            self._stamp.write_text(json.dumps({**done, "requirements": wanted["requirements"], "build": None}))
        if done.get("compiler", compiler_here) != compiler_here:
            shutil.rmtree(self.root / "build", ignore_errors=True)  # CMake's cache remembers which compiler there was
        self.step("building labcore", [*pip, "--no-build-isolation", "-e", "."])
        self._report_native(compiler_here)
        self._stamp.write_text(json.dumps(wanted))

    def _report_native(self, compiler_here: bool) -> None:
        command = [str(self.python), "-c", "import labcore.kernels._nanobind"]
        result = subprocess.run(command, cwd=self.root, env=self.variables(), capture_output=True, check=False, text=True)
        if result.returncode == 0:
            print("  native kernels: built", flush=True)
        elif compiler_here:
            reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
            raise SetupFailed(f"the native kernels were built but do not load: {reason}")
        else:
            print("  built in pure Python: no C++ compiler (c++, g++, clang++, cl) was found. All works, but slower.", flush=True)
            print("  Native kernels: `apt install g++` (Debian, Ubuntu), `xcode-select --install` (macOS); run again", flush=True)
