"""A party's ids under the agreed rules, each once, with the row where it stands.

Error messages give counts and row numbers, never an id: ids are personal data, and messages end up
in logs.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import pandas as pd

from colonnade.align.freed_memory import give_back_memory
from colonnade.align.rules import DEFAULT_KEY, KeyPart
from colonnade.core.errors import ConfigError, DataError

__all__ = ["Duplicates", "PreparedIds", "Texts", "prepare_ids", "prepare_pieces"]

Duplicates = Literal["refuse", "keep_first"]
Column = Any
Rows = np.ndarray[Any, np.dtype[np.int32]]
Ends = np.ndarray[Any, np.dtype[np.uint32]] | np.ndarray[Any, np.dtype[np.int64]]
Prints = np.ndarray[Any, np.dtype[np.uint8]]

# So many bytes that no two texts have the same fingerprint.
PRINT_BYTES = 16

# Texts that exist as Python objects at the same time.
_AT_ONCE = 65_536
# Within so many bytes, an offset takes four bytes.
_SHORT = 2**32


class Texts(Sequence[str]):
    """Many short texts in little memory: their bytes end to end."""

    def __init__(self, content: bytearray, ends: Ends) -> None:
        self._content = content
        self._ends = ends

    @classmethod
    def pack(cls, texts: Iterable[str]) -> Texts:
        """Put texts end to end."""
        content = bytearray()
        pieces = []
        rest = iter(texts)
        while some := [text.encode() for text in itertools.islice(rest, _AT_ONCE)]:
            begin = len(content)
            content += b"".join(some)
            pieces.append(begin + np.cumsum([len(item) for item in some], dtype=np.int64))
            if len(content) < _SHORT:
                pieces[-1] = pieces[-1].astype(np.uint32)
        return cls(content, np.concatenate([np.zeros(0, np.uint32), *pieces]))

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...

    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        if isinstance(place, slice):
            return tuple(self[number] for number in range(*place.indices(len(self))))
        return self.encoded(range(len(self))[place]).decode()

    def encoded(self, place: int) -> bytes:
        """One text's bytes."""
        begin = self._ends[place - 1] if place else 0
        return bytes(self._content[begin : self._ends[place]])

    def fingerprints(self, places: Sequence[int] | Rows, *, key: bytes = b"") -> Prints:
        """16 bytes for each of some texts, under a key; they must not leave their party."""
        prints = np.empty((len(places), PRINT_BYTES), np.uint8)
        for begin in range(0, len(places), _AT_ONCE):
            some = b"".join(
                [
                    hashlib.blake2b(self.encoded(place), key=key, digest_size=PRINT_BYTES).digest()
                    for place in places[begin : begin + _AT_ONCE]
                ]
            )
            piece = np.frombuffer(some, np.uint8).reshape(-1, PRINT_BYTES)
            prints[begin : begin + len(piece)] = piece
        return prints

    def digest(self, key: bytes) -> str:
        """A digest of all texts in their order, under a key; it must not leave its party."""
        state = hmac.new(key, digestmod="sha256")
        for begin in range(0, len(self), _AT_ONCE):
            state.update(self._ends[begin : begin + _AT_ONCE].astype("<i8").tobytes())
        state.update(self._content)
        return state.hexdigest()


@dataclass(frozen=True, kw_only=True)
class PreparedIds:
    """A party's ids under the agreed rules, each once, and the row where each stands."""

    ids: Texts
    rows: Rows
    num_rows: int
    num_duplicates: int

    def digest(self, key: bytes) -> str:
        """A digest of all ids and their rows, under a key; it must not leave its party."""
        rows = hmac.digest(key, self.rows.astype("<i4").tobytes(), "sha256")
        return self.ids.digest(rows)

    def __len__(self) -> int:
        return len(self.ids)


def prepare_ids(
    columns: Sequence[Column],
    key: Sequence[KeyPart] = DEFAULT_KEY,
    *,
    where: str,
    duplicates: Duplicates = "refuse",
) -> PreparedIds:
    """Apply the rules to a key's columns; find rows without an id and duplicates."""
    return prepare_pieces([columns], key, where=where, duplicates=duplicates)


def prepare_pieces(
    pieces: Iterable[Sequence[Column]],
    key: Sequence[KeyPart] = DEFAULT_KEY,
    *,
    where: str,
    duplicates: Duplicates = "refuse",
) -> PreparedIds:
    """Prepare the ids of a table that comes piece by piece and is never in memory as a whole."""
    empty: list[list[int]] = [[] for _ in key]
    ids = Texts.pack(_normalised(pieces, key, empty, where))
    for number, (part, rows_without) in enumerate(zip(key, empty, strict=True), start=1):
        if rows_without:
            raise DataError(
                f"{where}, part {number} of the key: {len(rows_without)} of {len(ids)} rows have "
                f"no id under the rules {list(part.rules)} (first at row {rows_without[0]}); fill "
                "them in or leave those rows out"
            )
    repeated = _repeats(ids)
    num_duplicates = int(repeated.sum())
    if num_duplicates and duplicates == "refuse":
        raise DataError(
            f"{where}: {num_duplicates} duplicate ids under the agreed rules (first repeat at row "
            f"{int(np.flatnonzero(repeated)[0])}); keep one row per id, or set "
            "align.duplicates = 'keep_first'"
        )
    rows = np.flatnonzero(~repeated).astype(np.int32)
    num_rows = len(ids)
    if num_duplicates:
        ids = Texts.pack(ids[row] for row in rows.tolist())
    give_back_memory()
    return PreparedIds(ids=ids, rows=rows, num_rows=num_rows, num_duplicates=num_duplicates)


def _normalised(
    pieces: Iterable[Sequence[Column]],
    key: Sequence[KeyPart],
    empty: Sequence[list[int]],
    where: str,
) -> Iterator[str]:
    """Every row's id under the rules; adds rows without one to ``empty``, by part of the key."""
    begin = 0
    for columns in pieces:
        if len(columns) != len(key):
            raise ConfigError(
                f"{where}: {len(columns)} id columns for a key of {len(key)} parts; name one per "
                "part"
            )
        if len({len(column) for column in columns}) > 1:
            raise DataError(f"{where}: the id columns have different lengths")
        parts = [
            _part_of(column, part, rows, begin)
            for column, part, rows in zip(columns, key, empty, strict=True)
        ]
        # A list in JSON is unambiguous: no separator can be part of a name.
        yield from parts[0] if len(parts) == 1 else map(_joined, zip(*parts, strict=True))
        begin += len(columns[0])


def _part_of(column: Column, part: KeyPart, empty: list[int], begin: int) -> Iterator[str]:
    values = pd.Series(column)
    absences = values.isna().to_numpy(dtype=bool)
    for row, (value, absent) in enumerate(zip(values, absences, strict=True), start=begin):
        text = "" if absent else part.apply(_text(value))
        if not text:
            empty.append(row)
        yield text


def _repeats(texts: Texts) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which texts are repeats of an earlier one."""
    words = texts.fingerprints(range(len(texts))).view("<u8").reshape(-1, 2)
    repeated = np.zeros(len(texts), dtype=bool)
    ordered = np.sort(words[:, 0])
    if not (ordered[1:] == ordered[:-1]).any():
        # Nearly always: no two fingerprints share their first half, so all differ.
        return repeated
    order = np.lexsort((words[:, 0], words[:, 1]))
    is_same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for half in (0, 1):
        ordered = words[order, half]
        is_same &= ordered[1:] == ordered[:-1]
    # The sort is stable: of equal texts, the first stays first.
    repeated[order[1:][is_same]] = True
    return repeated


def _text(value: Any) -> str:
    """Ids are compared as text; 7 and 7.0 are the same sample."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, datetime.datetime):
        value = value.date()
    # A lone half of a surrogate pair has no bytes in UTF-8.
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _joined(items: Sequence[str]) -> str:
    return json.dumps(items, ensure_ascii=False, separators=(",", ":"))
