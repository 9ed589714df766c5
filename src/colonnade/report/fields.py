"""JSON files whose values are checked as they are read; an error names file, key and remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from colonnade.core.errors import StorageError

__all__ = ["Fields", "parse_json", "read_bytes", "read_json"]


Record = TypeVar("Record")


class Fields:
    """A JSON object whose values are checked as they are taken."""

    def __init__(self, values: Any, where: str, remedy: str) -> None:
        if not isinstance(values, dict):
            raise StorageError(f"{where}: expected a JSON object; {remedy}")
        self.values: dict[str, Any] = values
        self._where = where
        self._remedy = remedy

    def record(self, kind: type[Record], nulls: Sequence[str] = (), **given: Any) -> Record:
        """A dataclass filled from keys named like its fields, each checked by the field's type.

        Numbers named in ``nulls`` may be null, for NaN. Fields in ``given`` are not read.
        """
        read: dict[Any, Callable[[str], Any]] = {
            str: self.text,
            int: self.whole,
            float: self.number,
            bool: self.truth,
            tuple[str, ...]: self.names,
            Mapping[str, int]: self.wholes,
            Mapping[str, float]: self.numbers,
        }
        optional = {hint | None: take for hint, take in read.items()}
        values = dict(given)
        hints = get_type_hints(kind)
        for name in (item.name for item in fields(kind) if item.name not in given):  # type: ignore[arg-type]
            hint = hints[name]
            if name in nulls:
                values[name] = self.number(name, math.nan)
            elif hint in read:
                values[name] = read[hint](name)
            else:
                values[name] = None if self.values.get(name) is None else optional[hint](name)
        return kind(**values)

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

    def whole(self, key: str) -> int:
        """A whole number."""
        value = self.number(key)
        if not value.is_integer():
            raise self._wrong(key, "a whole number")
        return int(self.values[key])

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
    """Read a JSON file."""
    return parse_json(read_bytes(path, remedy), str(path), remedy)


def read_bytes(path: Path, remedy: str) -> bytes:
    """Read a file; one that can't be read raises StorageError."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise StorageError(f"{path}: is missing; {remedy}") from error
    except OSError as error:
        raise StorageError(f"{path}: can't be read ({error.strerror}); {remedy}") from error


def parse_json(content: bytes, where: str, remedy: str) -> Any:
    """Parse JSON; damage raises StorageError with its place."""
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{where}: is damaged, not JSON ({error}); {remedy}") from error
