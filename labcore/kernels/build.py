"""Compiled files are looked at before they are loaded: a binary of another machine, of another Python, or cut short is named.

A file that was built elsewhere and stayed in the tree either fails with a message that names no cause, or makes the engine
fall back to a slow path that nobody notices (decision record 0009). So its header is read first, and compared with the
running interpreter: file format, machine, bits, byte order, and the tag in its name. Limits: what a header does not say
(a missing library, another C++ runtime) still shows only when it is loaded.

    >>> target_of_this_python()   # doctest: +SKIP
    Target(format='ELF', machine='x86_64', bits=64, byteorder='little')
    >>> [mismatch(path) for path in artefacts()]   # doctest: +SKIP
    ['', '', '']
"""

from __future__ import annotations

import importlib
import platform
import struct
import sys
import sysconfig
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import labcore.kernels
from labcore.core.errors import BackendUnavailable, BrokenArtefact

DOORS = {"nanobind": "_nanobind", "pybind11": "_pybind11", "ctypes": "ctypes_door"}  # modules with the same classes
_BINARY = {".so", ".pyd", ".dylib", ".dll"}
_ADVICE = "`labcore doctor` deletes what cannot be used, `python3 -m labcore up` builds it anew"
_FORMATS = {"darwin": "Mach-O", "win32": "PE", "cygwin": "PE"}
_ELF = {3: "x86", 40: "arm", 21: "ppc64", 22: "s390x", 62: "x86_64", 183: "aarch64", 243: "riscv"}
_MACH_O = {7: "x86", 12: "arm", 0x01000007: "x86_64", 0x0100000C: "aarch64"}
_PE = {0x14C: "x86", 0x1C4: "arm", 0x8664: "x86_64", 0xAA64: "aarch64"}
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64", "win32": "x86", "i686": "x86", "i386": "x86", "ppc64le": "ppc64"}
_NARROW = {"x86_64": "x86", "aarch64": "arm", "armv7l": "arm", "armv6l": "arm"}  # what a 32-bit process of that machine runs


@dataclass(frozen=True, slots=True)
class Target:
    """What a binary was built for, or what a process runs."""

    format: str  # ELF, Mach-O, PE
    machine: str
    bits: int
    byteorder: str  # as sys.byteorder

    def __str__(self) -> str:
        return f"{self.format} {self.machine}, {self.bits} bits, {self.byteorder} endian"


def target_of_this_python() -> Target:
    """What this interpreter can load. A 32-bit process on a 64-bit machine counts as the 32-bit machine."""
    bits = 8 * struct.calcsize("P")
    machine = platform.machine() if sys.platform == "darwin" else sysconfig.get_platform().rpartition("-")[2]
    machine = _ALIASES.get(machine.lower(), machine.lower())
    machine = _NARROW.get(machine, machine) if bits == 32 else "riscv" if machine.startswith("riscv") else machine
    return Target(_FORMATS.get(sys.platform, "ELF"), machine, bits, sys.byteorder)


def targets_of(path: Path) -> tuple[Target, ...]:
    """What the file was built for, by its header: one target, or the several of a fat Mach-O file.

    Raises BrokenArtefact for what is no shared library of a known format, or is shorter than its header says.
    """
    data = path.read_bytes()
    try:
        if data[:4] == b"\x7fELF":
            return (_elf(data),)
        if data[:4] in (b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf"):
            return _fat_mach_o(data)
        if data[:4] in (b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe", b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf"):
            return (_mach_o(data),)
        if data[:2] == b"MZ":
            return (_pe(data),)
    except (struct.error, IndexError):  # a field lies behind the end
        raise BrokenArtefact(f"{path} ends inside its header, after {len(data)} bytes") from None
    except EOFError as error:
        raise BrokenArtefact(f"{path} is cut short: it has {len(data)} bytes, its header speaks of {error}") from None
    raise BrokenArtefact(f"{path} is no shared library: it starts with {data[:8]!r}")


def mismatch(path: Path) -> str:
    """Why this Python cannot load the file; empty if its name and its header say that it can."""
    stem = next((path.name.removesuffix(suffix) for suffix in EXTENSION_SUFFIXES if path.name.endswith(suffix)), "")
    if not stem or "." in stem:
        return f"{path} is named for another Python; expected a name that ends in {EXTENSION_SUFFIXES[0]}"
    try:
        found = targets_of(path)
    except (BrokenArtefact, OSError) as error:
        return str(error)
    expected = target_of_this_python()
    if expected in found:
        return ""
    return f"{path} was built for {' and '.join(map(str, found))}; this Python runs {expected}"


def artefacts() -> list[Path]:
    """Every compiled file in the folders of `labcore.kernels`."""
    return [p for folder in labcore.kernels.__path__ for p in sorted(Path(folder).glob("*")) if p.suffix in _BINARY]


def remove_mismatched() -> list[str]:
    """Delete every compiled file that this Python cannot load; one line for each, with the reason."""
    lines = []
    for path in artefacts():
        if reason := mismatch(path):
            try:
                path.unlink()
                lines.append(f"deleted: {reason}")
            except OSError as error:
                lines.append(f"could not be deleted ({error.strerror}): {reason}")
    return lines


def find(name: str) -> Path:
    """The file of the module `labcore.kernels.<name>`, looked at; a compiled one may then be loaded.

    Raises BackendUnavailable if it is not built, BrokenArtefact if what is there cannot be used.
    """
    spec = find_spec(f"labcore.kernels.{name}")
    if spec is None or spec.origin is None:
        strays = [reason for p in artefacts() if p.name.startswith(f"{name}.") and (reason := mismatch(p))]
        if strays:
            raise BrokenArtefact(f"{strays[0]}; {_ADVICE}")
        raise BackendUnavailable(
            f"the C++ kernels are not built (there is no labcore.kernels.{name}); `labcore doctor` says what is missing"
        )
    path = Path(spec.origin)
    if path.suffix in _BINARY and (reason := mismatch(path)):
        raise BrokenArtefact(f"{reason}; {_ADVICE}")
    return path


def load(name: str) -> Any:
    """The module `labcore.kernels.<name>`, after `find`; BrokenArtefact also if the system does not load it."""
    path = find(name)
    try:
        return importlib.import_module(f"labcore.kernels.{name}")
    except (ImportError, OSError) as error:  # OSError: a library that ctypes opens
        raise BrokenArtefact(f"{path} does not load ({error}); {_ADVICE}") from None


def _need(data: bytes, end: int) -> None:
    if len(data) < end:
        raise EOFError(f"{end}")


def _elf(data: bytes) -> Target:
    order = "<" if data[5] == 1 else ">"
    (machine,) = struct.unpack_from(order + "H", data, 18)
    wide = data[4] == 2
    # the table of sections lies at the end of the file
    (sections,) = struct.unpack_from(order + ("Q" if wide else "I"), data, 40 if wide else 32)
    size, count = struct.unpack_from(order + "HH", data, 58 if wide else 46)
    _need(data, sections + size * count)
    return Target("ELF", _ELF.get(machine, f"machine {machine}"), 64 if wide else 32, "little" if order == "<" else "big")


def _mach_o(data: bytes) -> Target:
    little = data[:1] in (b"\xce", b"\xcf")
    wide = (data[0] if little else data[3]) == 0xCF
    machine, _, _, _, commands = struct.unpack_from(("<" if little else ">") + "5I", data, 4)
    _need(data, (32 if wide else 28) + commands)
    return Target("Mach-O", _MACH_O.get(machine, f"machine {machine}"), 64 if wide else 32, "little" if little else "big")


def _fat_mach_o(data: bytes) -> tuple[Target, ...]:
    entry = struct.Struct(">IIQQII" if data[3] == 0xBF else ">IIIII")
    (count,) = struct.unpack_from(">I", data, 4)
    slices = [entry.unpack_from(data, 8 + i * entry.size)[2:4] for i in range(count)]
    for offset, size in slices:
        _need(data, offset + size)
    return tuple(_mach_o(data[offset : offset + size]) for offset, size in slices)


def _pe(data: bytes) -> Target:
    (start,) = struct.unpack_from("<I", data, 0x3C)
    if data[start : start + 4] != b"PE\0\0":
        raise IndexError
    machine, sections = struct.unpack_from("<HH", data, start + 4)
    (optional,) = struct.unpack_from("<H", data, start + 20)
    (magic,) = struct.unpack_from("<H", data, start + 24)
    for i in range(sections):  # bytes of a section, and where they lie
        size, offset = struct.unpack_from("<II", data, start + 24 + optional + 40 * i + 16)
        _need(data, offset + size)
    return Target("PE", _PE.get(machine, f"machine {machine:#x}"), 64 if magic == 0x20B else 32, "little")
