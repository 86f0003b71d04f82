"""Binaries of other machines are known by their headers before they are loaded, named, and deleted by the doctor."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from support import ISAS

import labcore.kernels
from labcore.cli.main import main
from labcore.core.errors import BrokenArtefact
from labcore.kernels import build
from labcore.kernels.build import DOORS, Target, find, mismatch, remove_mismatched, target_of_this_python, targets_of

SUFFIX = EXTENSION_SUFFIXES[0]
ROOT = Path(__file__).parents[2]


def elf(machine: int, wide: bool = True, little: bool = True) -> bytes:
    order = "<" if little else ">"
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if little else 2, 1]) + bytes(9)
    size = 64 if wide else 52
    # type, machine, version, entry, program headers, sections at, flags, sizes ..., number of sections
    numbers = (3, machine, 1, 0, size, size, 0, size, 56, 0, 64, 2, 1)
    return ident + struct.pack(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"), *numbers) + bytes(128)


def mach_o(machine: int, wide: bool = True, little: bool = True) -> bytes:
    order = "<" if little else ">"
    return struct.pack(order + "7I", 0xFEEDFACF if wide else 0xFEEDFACE, machine, 0, 6, 1, 16, 0) + bytes(4 * wide + 16)


def fat(*slices: bytes, wide: bool = False) -> bytes:
    entry = struct.Struct(">IIQQII" if wide else ">IIIII")
    start, table, body = 8 + len(slices) * entry.size, b"", b""
    for part in slices:
        fields = (0, 0, start + len(body), len(part), 0, 0)
        table, body = table + entry.pack(*(fields if wide else fields[:5])), body + part
    return struct.pack(">II", 0xCAFEBABF if wide else 0xCAFEBABE, len(slices)) + table + body


def pe(machine: int, magic: int) -> bytes:
    stub = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40)
    header = b"PE\0\0" + struct.pack("<HHIIIHH", machine, 1, 0, 0, 0, 96, 0)
    section = struct.pack("<8sIIII", b".text", 16, 0, 16, 0x40 + 24 + 96 + 40) + bytes(16)
    return stub + header + struct.pack("<H", magic).ljust(96, b"\0") + section + bytes(16)


BINARIES = {
    "ELF x86_64": (elf(62), Target("ELF", "x86_64", 64, "little")),
    "ELF aarch64": (elf(183), Target("ELF", "aarch64", 64, "little")),
    "ELF x86": (elf(3, wide=False), Target("ELF", "x86", 32, "little")),
    "ELF s390x": (elf(22, little=False), Target("ELF", "s390x", 64, "big")),
    "ELF of no known machine": (elf(9999), Target("ELF", "machine 9999", 64, "little")),
    "Mach-O x86_64": (mach_o(0x01000007), Target("Mach-O", "x86_64", 64, "little")),
    "Mach-O aarch64": (mach_o(0x0100000C), Target("Mach-O", "aarch64", 64, "little")),
    "Mach-O of a PowerPC": (mach_o(18, wide=False, little=False), Target("Mach-O", "machine 18", 32, "big")),
    "PE x86_64": (pe(0x8664, 0x20B), Target("PE", "x86_64", 64, "little")),
    "PE aarch64": (pe(0xAA64, 0x20B), Target("PE", "aarch64", 64, "little")),
    "PE x86": (pe(0x14C, 0x10B), Target("PE", "x86", 32, "little")),
}
FOREIGN = {name: data for name, (data, target) in BINARIES.items() if target != target_of_this_python()}


@pytest.mark.parametrize("name", BINARIES)
def test_a_header_says_what_a_binary_was_built_for(tmp_path: Path, name: str) -> None:
    data, target = BINARIES[name]
    path = tmp_path / f"_kernel{SUFFIX}"
    path.write_bytes(data)
    assert targets_of(path) == (target,)
    said = mismatch(path)
    assert (said == "") == (target == target_of_this_python())
    assert not said or said == f"{path} was built for {target}; this Python runs {target_of_this_python()}"


@pytest.mark.parametrize("wide", [False, True])
def test_a_fat_file_holds_several(tmp_path: Path, wide: bool) -> None:
    path = tmp_path / f"_kernel{SUFFIX}"
    path.write_bytes(fat(mach_o(0x01000007), mach_o(0x0100000C), wide=wide))
    assert [target.machine for target in targets_of(path)] == ["x86_64", "aarch64"]
    assert (mismatch(path) == "") == (sys.platform == "darwin")


def test_this_python_is_what_its_own_binary_says() -> None:
    assert target_of_this_python() in targets_of(Path(sys.executable).resolve())


@pytest.mark.parametrize("name", ["ELF x86_64", "Mach-O aarch64", "PE x86_64", "fat"])
def test_every_truncation_is_named(tmp_path: Path, name: str) -> None:
    data = fat(mach_o(0x01000007), mach_o(0x0100000C)) if name == "fat" else BINARIES[name][0]
    path = tmp_path / f"_kernel{SUFFIX}"
    for length in range(len(data) - 16):  # the last section of the forged PE file is padded
        path.write_bytes(data[:length])
        with pytest.raises(BrokenArtefact, match=r"is cut short|ends inside its header|is no shared library"):
            targets_of(path)
        assert mismatch(path)


def test_a_text_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / f"_kernel{SUFFIX}"
    path.write_text("<html>404</html>")
    assert mismatch(path) == f"{path} is no shared library: it starts with b'<html>40'"


@pytest.mark.parametrize("name", ["_kernel.cpython-399-riscv64-linux-gnu.so", "_kernel.cp39-win_amd64.pyd", "_kernel.dylib"])
def test_a_name_of_another_python_is_told(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(elf(62))
    assert mismatch(path) == f"{path} is named for another Python; expected a name that ends in {SUFFIX}"


@pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")
def test_the_doctor_deletes_what_cannot_load_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in {**FOREIGN, "a text": b"text", "cut short": elf(62)[:99]}.items():
        (tmp_path / f"{name.replace(' ', '_')}{SUFFIX}").write_bytes(data)
    good = tmp_path / f"_good{SUFFIX}"
    shutil.copy(find("_nanobind"), good)
    (tmp_path / "module.py").write_text("")
    monkeypatch.setattr(labcore.kernels, "__path__", [*labcore.kernels.__path__, str(tmp_path)])
    main(["doctor"])
    [line] = [line for line in capsys.readouterr().out.splitlines() if "native kernels" in line]
    assert line.startswith("ok") and line.count("deleted: ") == len(FOREIGN) + 2
    assert "was built for ELF aarch64, 64 bits, little endian; this Python runs " in line
    assert sorted(path.name for path in tmp_path.iterdir()) == [good.name, "module.py"]
    assert remove_mismatched() == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree as it lies on a disk that two machines share: our sources, and a compiled file of the other machine."""
    shutil.copytree(ROOT / "labcore", tmp_path / "labcore", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    (tmp_path / "labcore/kernels" / f"_nanobind{SUFFIX}").write_bytes(next(iter(FOREIGN.values())))
    return tmp_path


def run(tree: Path, code: str) -> subprocess.CompletedProcess[str]:
    """In a process that sees this tree and not the installed labcore (-S: no .pth files)."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), sysconfig.get_path("purelib")])}
    return subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, cwd=tree)


def test_the_artefact_that_lied(tree: Path) -> None:
    """Loaded blindly it fails with a message that names no cause, and falling back would be silent. Both are over."""
    blind = run(tree, "import labcore.kernels._nanobind")
    assert blind.returncode == 1 and "ImportError" in blind.stderr
    assert "aarch64" not in blind.stderr and "x86_64, 64 bits" not in blind.stderr  # what the system says of it
    for code in ("get_backend()", "get_backend('native')"):
        told = run(tree, f"from labcore.kernels.registry import get_backend; print({code}.name)")
        assert told.returncode == 1 and told.stdout == ""
        assert "BrokenArtefact" in told.stderr and f"this Python runs {target_of_this_python()}" in told.stderr
        assert "`labcore doctor` deletes what cannot be used" in told.stderr
    # an artefact that is not there at all is another matter: then the numpy backend is the engine's choice, and info says so
    (tree / "labcore/kernels" / f"_nanobind{SUFFIX}").unlink()
    assert run(tree, "from labcore.kernels.registry import get_backend; print(get_backend().name)").stdout == "numpy\n"


def test_a_stray_of_another_python_is_given_as_the_reason(tree: Path) -> None:
    path = tree / "labcore/kernels" / f"_nanobind{SUFFIX}"
    path.rename(path.with_name("_nanobind.cpython-399-riscv64-linux-gnu.so"))
    told = run(tree, "from labcore.kernels.registry import get_backend; get_backend()")
    assert (
        "BrokenArtefact" in told.stderr
        and "_nanobind.cpython-399-riscv64-linux-gnu.so is named for another Python" in told.stderr
    )


@pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")
def test_every_installed_artefact_is_of_this_machine() -> None:
    paths = [find(module) for module in (*DOORS.values(), "_c_api")]
    assert {path.suffix for path in paths} == {".py", Path(SUFFIX).suffix}
    assert [mismatch(path) for path in build.artefacts()] == [""] * 3


@pytest.mark.skipif(not ISAS, reason="the native kernels are not built (no C++ compiler)")
def test_a_wheel_opens_every_door_outside_the_clone(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", tmp_path, "."], cwd=ROOT, check=True)
    [wheel] = tmp_path.glob("labcore-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True)
    code = """
import numpy as np
from labcore.kernels.build import DOORS, find
from labcore.kernels.native import NativeBackend
print(find("_c_api").parent)
x, weight = np.full((2, 8), 3, np.float32), np.ones(8, np.float32)
for door in DOORS:
    print(door, NativeBackend(door=door).rms_norm(x, weight, 0.0).tolist() == [[1.0] * 8] * 2)
"""
    result = run(tmp_path / "site", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [str(tmp_path / "site/labcore/kernels"), *(f"{door} True" for door in DOORS)]
