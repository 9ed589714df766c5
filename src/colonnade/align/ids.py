"""Ids as they are: agreed rules that make two parties write the same person the same way.

A key has one part or several (name and birth date). Each part has a list of rules, applied in the
order in which they stand:

========  ==========================================================================
trim      no space at the ends, one space for any run of spaces inside
nfkc      Unicode's compatibility form: full-width digits, ligatures, composed accents
case      no difference between upper and lower case (Unicode case folding)
digits    decimal digits only, as ASCII
email     an e-mail address: trimmed, folded, no ``mailto:``
phone     a telephone number as ``+`` and digits; ``country`` stands for a leading 0
date      a date as 1990-05-31, from 1990-05-31, 1990/5/31, 19900531 or 31.5.1990
========  ==========================================================================

Messages give counts and row numbers, never an id: ids are personal data and messages end up in
logs.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import pandas as pd

from colonnade.core.errors import ConfigError, DataError

__all__ = ["DEFAULT_KEY", "Duplicates", "KeyPart", "PreparedIds", "Rule", "Texts", "prepare_ids"]

Rule = Literal["trim", "nfkc", "case", "digits", "email", "phone", "date"]
Duplicates = Literal["refuse", "keep_first"]
Column = Any
Rows = np.ndarray[Any, np.dtype[np.int64]]
Prints = np.ndarray[Any, np.dtype[np.uint8]]

# No two texts have the same fingerprint of so many bytes.
PRINT_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class KeyPart:
    """One part of a sample's key: the rules that all parties apply to it.

    ``country`` is the calling code, such as 49, that stands for a telephone number's leading 0.
    """

    rules: tuple[Rule, ...] = ("nfkc", "trim")
    country: str | None = None

    def __post_init__(self) -> None:
        if self.country is not None and not re.fullmatch(r"[1-9][0-9]{0,2}", self.country):
            raise ConfigError(
                f"country: a calling code of 1 to 3 digits, such as 49, got '{self.country}'"
            )
        if self.country is not None and "phone" not in self.rules:
            raise ConfigError("country: only the rule 'phone' uses it; add the rule or leave it")
        twice = sorted({rule for rule in self.rules if self.rules.count(rule) > 1})
        if twice:
            raise ConfigError(f"rules: {twice} stand more than once")

    def apply(self, text: str) -> str:
        """The text under the rules; empty where it is none of what a rule asks for."""
        for rule in self.rules:
            text = _RULES[rule](text, self.country)
        return text


DEFAULT_KEY = (KeyPart(),)


class Texts(Sequence[str]):
    """Many short texts in little memory: their bytes end to end."""

    def __init__(self, content: bytearray, ends: Rows) -> None:
        self._content = content
        self._ends = ends

    @classmethod
    def pack(cls, texts: Iterable[str]) -> Texts:
        """Put texts end to end."""
        content = bytearray()
        lengths = array("q")
        for text in texts:
            content += text.encode()
            lengths.append(len(content))
        return cls(content, np.frombuffer(lengths, dtype=np.int64))

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

    def fingerprints(self, places: Iterable[int], *, key: bytes = b"") -> Prints:
        """16 bytes for each of some texts, under a key; made here, and not to leave."""
        prints = bytearray()
        for place in places:
            text = self.encoded(place)
            prints += hashlib.blake2b(text, key=key, digest_size=PRINT_BYTES).digest()
        return np.frombuffer(prints, dtype=np.uint8).reshape(-1, PRINT_BYTES)


@dataclass(frozen=True, kw_only=True)
class PreparedIds:
    """A party's ids under the agreed rules, each once, and the row where each stands."""

    ids: Texts
    rows: Rows
    num_rows: int
    num_duplicates: int

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
    if len(columns) != len(key):
        raise ConfigError(
            f"{where}: {len(columns)} id columns for a key of {len(key)} parts; name one per part"
        )
    parts = [
        _normalised(column, part, f"{where}, part {number} of the key")
        for number, (column, part) in enumerate(zip(columns, key, strict=True), start=1)
    ]
    if len({len(part) for part in parts}) > 1:
        raise DataError(f"{where}: the id columns have different lengths")
    # A list in JSON is unambiguous: no separator can be part of a name.
    ids = parts[0] if len(parts) == 1 else Texts.pack(map(_joined, zip(*parts, strict=True)))
    repeated = _repeats(ids)
    num_duplicates = int(repeated.sum())
    if num_duplicates and duplicates == "refuse":
        raise DataError(
            f"{where}: {num_duplicates} duplicate ids under the agreed rules (first repeat at row "
            f"{int(np.flatnonzero(repeated)[0])}); keep one row per id, or set "
            "align.duplicates = 'keep_first'"
        )
    rows = np.flatnonzero(~repeated).astype(np.int64)
    kept = ids if not num_duplicates else Texts.pack(ids[row] for row in rows.tolist())
    return PreparedIds(ids=kept, rows=rows, num_rows=len(ids), num_duplicates=num_duplicates)


def _normalised(column: Column, part: KeyPart, where: str) -> Texts:
    values = pd.Series(column)
    texts = Texts.pack(
        "" if absent else part.apply(_text(value))
        for value, absent in zip(values, values.isna().to_numpy(dtype=bool), strict=True)
    )
    empty = [row for row in range(len(texts)) if not texts.encoded(row)]
    if empty:
        raise DataError(
            f"{where}: {len(empty)} of {len(texts)} rows have no id under the rules "
            f"{list(part.rules)} (first at row {empty[0]}); fill them in or leave those rows out"
        )
    return texts


def _repeats(texts: Texts) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which texts stand further up already."""
    words = texts.fingerprints(range(len(texts))).view("<u8").reshape(-1, 2)
    order = np.lexsort((words[:, 0], words[:, 1]))
    is_same = np.ones(max(len(order) - 1, 0), dtype=bool)
    for half in (0, 1):
        ordered = words[order, half]
        is_same &= ordered[1:] == ordered[:-1]
    repeated = np.zeros(len(texts), dtype=bool)
    # The sort is stable: of equal ones, the first stays first.
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


def _trim(text: str, _: str | None) -> str:
    return " ".join(text.split())


def _nfkc(text: str, _: str | None) -> str:
    return unicodedata.normalize("NFKC", text)


def _case(text: str, _: str | None) -> str:
    # Folding can undo composition, as Unicode's own caseless matching takes care of.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def _digits(text: str, _: str | None) -> str:
    return "".join(str(unicodedata.decimal(sign)) for sign in text if sign.isdecimal())


def _email(text: str, country: str | None) -> str:
    text = _case(_nfkc("".join(text.split()), country), country).removeprefix("mailto:")
    name, _, domain = text.rpartition("@")
    domain = domain.rstrip(".")
    return f"{name}@{domain}" if name and "." in domain else ""


def _phone(text: str, country: str | None) -> str:
    text = _nfkc(text, country).strip().casefold().removeprefix("tel:").strip()
    # The trunk zero that some write in brackets after the country's code is not dialled.
    is_international = text.startswith(("+", "00"))
    digits = _digits(text.replace("(0)", "") if is_international else text, country)
    if text.startswith("+"):
        return f"+{digits}" if digits else ""
    if text.startswith("00"):
        return f"+{digits[2:]}" if digits[2:] else ""
    if not digits or country is None:
        return digits
    return f"+{country}{digits.removeprefix('0')}"


_DATES = (
    re.compile(r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})"),
    re.compile(r"(?P<y>\d{4})/(?P<m>\d{1,2})/(?P<d>\d{1,2})"),
    re.compile(r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})"),
    re.compile(r"(?P<d>\d{1,2})\.\s?(?P<m>\d{1,2})\.\s?(?P<y>\d{4})"),
)


def _date(text: str, country: str | None) -> str:
    text = _nfkc(text, country).strip()
    for form in _DATES:
        found = form.fullmatch(text)
        if found is not None:
            try:
                return datetime.date(*(int(found[part]) for part in "ymd")).isoformat()
            except ValueError:
                return ""
    return ""


_RULES: Mapping[str, Callable[[str, str | None], str]] = {
    "trim": _trim,
    "nfkc": _nfkc,
    "case": _case,
    "digits": _digits,
    "email": _email,
    "phone": _phone,
    "date": _date,
}
