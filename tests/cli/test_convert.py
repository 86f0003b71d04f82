"""`labcore convert`: there and back by the command line; bad input is one line and leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labcore.cli.main import main


def test_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "lab", "-o", "a.gguf", "--dtype", "bf16"]) == 0
    assert main(["convert", "a.gguf", "-o", "folder", "--dtype", "bf16", "--max-shard-size", "0.001"]) == 0
    capsys.readouterr()
    Path("a").mkdir()
    assert main(["convert", "folder", "-o", "a/A.GGUF", "--dtype", "bf16", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "output": "a/A.GGUF",
        "model": "folder",
        "dtype": "bf16",
        "bytes": Path("a/A.GGUF").stat().st_size,
        "files": 1,
    }
    assert main(["generate", "--model", "folder", "hello", "--max-tokens", "4"]) == 0
    assert capsys.readouterr().out.startswith("hello")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing", "-o", "x"], "'nothing' is neither a model nor"),
        (["lab"], "-o/--output"),
        (["lab", "-o", "x", "--dtype", "f64"], "invalid choice: 'f64'"),
        (["lab", "-o", "x", "--max-shard-size", "nan"], "--max-shard-size is nan"),
        (["lab", "-o", "there"], "there exists"),
        (["lab", "-o", "no/such/folder"], "no/such/folder: cannot be written"),
        (["lab-moe", "-o", "x"], "lab-moe: has experts; only models without them can be written"),
        (["lab-moe", "-o", "x.gguf"], "lab-moe: has experts; only models without them can be written"),
        (["lab", "-o", "a\0b"], "--output holds a NUL"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["convert", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
