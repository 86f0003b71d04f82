"""A throw-away project with a real, bare .venv, whose tools are stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import TOOL, Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    root, tools = tmp_path / "a project", tmp_path / "tools"  # with a space, as people have
    made = Project(root, tmp_path / "calls")
    for name in ("pyproject.toml", "cpp/kernel.cpp", "labcore/__init__.py", "labcore/kernels/__init__.py"):
        made.write(name)
    made.write("requirements.txt", "numpy\n")
    made.write("labcore/kernels/_nanobind.py")
    made.write("labcore/__main__.py", TOOL.format(name="labcore") + "sys.exit(main())\n")
    for name in ("pip", "ensurepip"):
        made.write(str(tools / name / "__init__.py"))
        made.write(str(tools / name / "__main__.py"), TOOL.format(name=name) + "sys.exit(main())\n")
    compilers = tools / "bin"
    compilers.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tools))
    monkeypatch.setenv("FAKE_CALLS", str(made.calls_path))
    monkeypatch.setenv("PATH", str(compilers))
    monkeypatch.delenv("CXX", raising=False)
    compiler = compilers / "c++"
    compiler.touch()
    compiler.chmod(0o755)
    return made
