"""JSON whose values are checked as they are taken; what is wrong is named with its place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from colonnade.core.errors import StorageError

__all__ = ["Fields", "parse_json", "read_bytes", "read_json"]


class Fields:
    """A JSON object whose values are checked as they are taken."""

    def __init__(self, values: Any, where: str, remedy: str) -> None:
        if not isinstance(values, dict):
            raise StorageError(f"{where}: expected a JSON object; {remedy}")
        self.values: dict[str, Any] = values
        self._where = where
        self._remedy = remedy

    def _wrong(self, key: str, expected: str) -> StorageError:
        came = f"got {self.values[key]!r:.60}" if key in self.values else "it is missing"
        return StorageError(f"{self._where}: '{key}' should be {expected}, {came}; {self._remedy}")

    def text(self, key: str) -> str:
        """Text."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def optional_text(self, key: str) -> str | None:
        """Text, or None."""
        return None if self.values.get(key) is None else self.text(key)

    def number(self, key: str, null: float | None = None) -> float:
        """A number; ``null``, if given, stands for JSON's null."""
        value = self.values.get(key)
        if value is None and key in self.values and null is not None:
            return null
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        try:
            return float(value)
        except OverflowError:
            raise self._wrong(key, "a number of ordinary size") from None

    def optional_number(self, key: str) -> float | None:
        """A number, or None."""
        return None if self.values.get(key) is None else self.number(key)

    def whole(self, key: str) -> int:
        """A whole number."""
        value = self.number(key)
        if not value.is_integer():
            raise self._wrong(key, "a whole number")
        return int(self.values[key])

    def optional_whole(self, key: str) -> int | None:
        """A whole number, or None."""
        return None if self.values.get(key) is None else self.whole(key)

    def truth(self, key: str) -> bool:
        """True or false."""
        value = self.values.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def inners(self, key: str) -> list[Fields]:
        """A list of objects; an absent one is empty."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        where = f"{self._where}: '{key}'"
        return [Fields(item, f"{where}, place {n}", self._remedy) for n, item in enumerate(value)]

    def inner(self, key: str) -> Fields:
        """The object under a key; an absent one is empty."""
        return Fields(self.values.get(key, {}), f"{self._where}: '{key}'", self._remedy)

    def numbers(self, key: str) -> dict[str, float]:
        """Numbers by name; null is NaN."""
        inner = self.inner(key)
        return {name: inner.number(name, math.nan) for name in inner.values}

    def wholes(self, key: str) -> dict[str, int]:
        """Whole numbers by name."""
        inner = self.inner(key)
        return {name: inner.whole(name) for name in inner.values}

    def names(self, key: str) -> tuple[str, ...]:
        """A list of names, each once."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._wrong(key, "a list of names")
        return tuple(dict.fromkeys(value))


def read_json(path: Path, remedy: str) -> Any:
    """What a JSON file holds."""
    return parse_json(read_bytes(path, remedy), str(path), remedy)


def read_bytes(path: Path, remedy: str) -> bytes:
    """What a file holds; one that can't be read is a StorageError."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise StorageError(f"{path}: is missing; {remedy}") from error
    except OSError as error:
        raise StorageError(f"{path}: can't be read ({error.strerror}); {remedy}") from error


def parse_json(content: bytes, where: str, remedy: str) -> Any:
    """JSON from bytes; damage is a StorageError that says where."""
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{where}: is damaged, not JSON ({error}); {remedy}") from error
