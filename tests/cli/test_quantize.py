"""`labcore quantize`: sizes and errors are those of the files; bad input is one line and leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from labcore.cli.main import main
from labcore.loaders.load import load_checkpoint
from labcore.loaders.writing import float32


@pytest.mark.parametrize(("to", "output"), [("q8_0", "lab.gguf"), ("q4_0", "lab.gguf"), ("q4_1", "LAB.GGUF"), ("int8", "lab")])
def test_it_writes_what_it_says(
    to: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", "lab", "-o", output, "--to", to, "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    exact, tensors = load_checkpoint("lab").tensors, load_checkpoint(tmp_path / output).tensors
    assert document["bytes_before"] == sum(tensor.nbytes for tensor in exact.values())
    assert document["bytes_after"] == sum(tensor.nbytes for tensor in tensors.values()) < document["bytes_before"] * 0.28
    kinds = ["embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert list(document["relative_error"]) == kinds
    for kind in kinds:
        errors = []
        for name in (name for name in exact if f".{kind}." in name):
            want = exact[name].astype(np.float64)  # type: ignore[union-attr]
            errors.append(np.sqrt(((float32(tensors[name]) - want) ** 2).sum() / (want**2).sum()))
        assert document["relative_error"][kind] == {"mean": pytest.approx(np.mean(errors)), "worst": pytest.approx(max(errors))}
    assert f"weights of {document['bytes_before']:,} bytes now {document['bytes_after']:,}" in captured.err
    assert main(["generate", "--model", str(tmp_path / output), "hello", "--max-tokens", "2"]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing", "-o", "x", "--to", "int8"], "'nothing' is neither a model nor"),
        (["lab", "-o", "x.gguf"], "--to"),
        (["lab", "--to", "int8"], "-o/--output"),
        (["lab", "-o", "x.gguf", "--to", "q2_k"], "invalid choice: 'q2_k'"),
        (["lab", "-o", "x", "--to", "q8_0"], "x: expected a name that ends in .gguf for q8_0"),
        (["lab", "-o", "x.gguf", "--to", "int8"], "x.gguf: expected the name of a folder for int8"),
        (["lab", "-o", "there", "--to", "int8"], "there exists"),
        (["lab", "-o", "no/such/x.gguf", "--to", "q4_1"], "no/such/x.gguf: cannot be written"),
        (["lab-moe", "-o", "x", "--to", "int8"], "lab-moe: has experts; only models without them can be written"),
        (["lab", "-o", "a\0.gguf", "--to", "q4_1"], "--output holds a NUL"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["quantize", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_model_of_nan_is_refused_by_name(nan_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for to, output in (("int8", "out"), ("q4_1", "out.gguf")):
        assert main(["quantize", str(nan_model), "-o", str(tmp_path / output), "--to", to]) == 2
        assert "model.layers.2.mlp.down_proj.weight: row 0 holds a NaN" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
