"""What a file says by name: the metadata of a GGUF file, or an object of JSON, read by key and type and named when wrong.

>>> fields = Fields("config.json:", json_object(b'{"hidden_size": "64"}', "config.json"))
>>> fields.integer("hidden_size")
Traceback (most recent call last):
...
labcore.core.errors.InvalidCheckpoint: config.json: hidden_size is '64'; expected int
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from labcore.core.errors import InvalidCheckpoint

MAX_JSON_BYTES = 16 << 20  # an index of 100,000 tensors; Python's objects take some ten times as much
_REQUIRED = object()


def read_bounded(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """What a file holds; InvalidCheckpoint if it is missing, no file (a pipe would be waited for), or has more bytes."""
    try:
        if not os.path.isfile(path):
            reason = "neither a file nor a link to one" if os.path.lexists(path) else "no such file"
            raise InvalidCheckpoint(f"{path}: cannot be read: {reason}")
        if path.stat().st_size > limit:
            raise InvalidCheckpoint(f"{path}: has {path.stat().st_size} bytes; expected at most {limit}")
        return path.read_bytes()
    except OSError as error:
        raise InvalidCheckpoint(f"{path}: cannot be read: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of JSON; InvalidCheckpoint if it cannot be read or is none."""
    return json_object(read_bounded(path), str(path))


def write_json(path: Path, document: dict[str, Any]) -> None:
    """The same bytes for the same document, on each system."""
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def json_object(data: bytes, source: str) -> dict[str, Any]:
    """The object that JSON in UTF-8 says. Refused with the source's name: a key that occurs twice, NaN, Infinity."""
    try:
        found = json.loads(data.decode(), object_pairs_hook=_distinct, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{source}: not JSON that can be used: {error!s:.200}") from None
    if not isinstance(found, dict):
        raise InvalidCheckpoint(f"{source}: holds a {type(found).__name__}; expected a JSON object")
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        [(key, times)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {key!r:.80} occurs {times} times")
    return found


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


class Fields:
    """Values by key, with the type each must have; None (null) is as good as absent.

    source: what messages begin with. prefix: of all keys.
    """

    def __init__(self, source: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.source, self.values, self.prefix = source, values, prefix

    def get(self, key: str) -> Any:
        return self.values.get(self.prefix + key)

    def fail(self, key: str, expected: str) -> NoReturn:
        value = self.get(key)
        got = "missing" if value is None else f"{value!r:.60}"
        raise InvalidCheckpoint(f"{self.source} {self.prefix}{key} is {got}; {expected}")

    def typed(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """The value, which must be of exactly this type (True is no int)."""
        value = self.get(key)
        if value is None:
            value = default
        if value is _REQUIRED or (value is not default and type(value) is not kind):
            self.fail(key, f"expected {kind.__name__}")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        value = self.typed(key, str, default)
        if isinstance(value, str) and value.encode("utf-8", "ignore").decode() != value:
            self.fail(key, "half a surrogate pair is no text")
        return value

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        return self.typed(key, bool, default)

    def integer(self, key: str, default: Any = _REQUIRED) -> int:
        value = self.typed(key, int, default)
        if not -(2**63) <= value < 2**64:
            self.fail(key, "expected a number of 64 bits")
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        return float(self.integer(key) if type(self.get(key)) is int else self.typed(key, float, default))

    def only(self, key: str, *supported: Any) -> None:
        """Refuse all values but these, and an absent one."""
        value = self.get(key)
        if value is not None and not any(type(value) is type(plain) and value == plain for plain in supported):
            self.fail(key, f"supported: {', '.join(map(repr, supported))}")
