"""Files and values by name: what is read is bounded, what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from labcore.core.errors import InvalidCheckpoint
from labcore.loaders.fields import MAX_JSON_BYTES, Fields, read_bounded, read_json, write_json


def test_a_document_comes_back(tmp_path: Path) -> None:
    document = {"b": [1, 2.5, None], "a": "é\n\u2028🙂"}
    write_json(tmp_path / "a.json", document)
    assert read_json(tmp_path / "a.json") == document
    assert (tmp_path / "a.json").read_bytes() == (
        '{\n  "b": [\n    1,\n    2.5,\n    null\n  ],\n  "a": "é\\n\u2028🙂"\n}\n'.encode()
    )


def test_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(InvalidCheckpoint, match="a: has 5 bytes; expected at most 4"):
        read_bounded(path, 4)
    with path.open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(InvalidCheckpoint, match=f"expected at most {MAX_JSON_BYTES}"):
        read_json(path)


def test_half_a_character_is_no_text() -> None:
    fields = Fields("here:", {"half": "a\udc00", "whole": "🙂"})
    assert fields.text("whole") == "🙂" and fields.text("none", None) is None
    with pytest.raises(InvalidCheckpoint, match=r"here: half is 'a\\udc00'; half a surrogate pair is no text"):
        fields.text("half")
