"""Tables from files: CSV in the ways that people write it, and Parquet.

How a CSV file is written (separator, encoding, decimal comma) is found out and told in notes, or
said in a ``CsvSpec``. What a column means is decided in ``column_kinds``.
"""

from __future__ import annotations

import gzip
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pyarrow import ArrowException

from colonnade.core.errors import ColonnadeError, ConfigError, DataError, TableUnreadable
from colonnade.files import write_atomically

__all__ = [
    "CsvForm",
    "CsvSpec",
    "csv_form",
    "is_parquet",
    "plain_numbers",
    "read_noted_table",
    "read_table",
    "write_table",
]

# So much of a file shows how it is written.
_GLANCE = 262_144
_SEPARATORS = (",", ";", "\t", "|")
_WITH_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),(\d+)")
_WHOLE = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)")
# A number that is written in one way only, and fits into 64 bits.
_PLAIN_NUMBER = r"(?:0|-?[1-9]\d{0,17})"
_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, kw_only=True)
class CsvSpec:
    """How a CSV file is written; what is not said is found out.

    ``dates`` gives the format of columns of dates, e.g. {"opened": "%d.%m.%Y"}, or "iso".
    ``missing`` lists texts that stand for a missing value besides the usual ones.
    """

    separator: str | None = None
    decimal: Literal[".", ","] | None = None
    thousands: str | None = None
    encoding: str | None = None
    dates: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("separator", "thousands"):
            value = getattr(self, name)
            if value is not None and len(value) != 1:
                raise ConfigError(f"{name}: one character, got {value!r}")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except LookupError as error:
                raise ConfigError(
                    f"encoding: {self.encoding!r} is not known; e.g. utf-8, latin-1, cp1252"
                ) from error
        if self.thousands is not None and self.thousands in (self.decimal or "."):
            raise ConfigError("thousands: the same character as decimal; set decimal too")


@dataclass(frozen=True, kw_only=True)
class CsvForm:
    """How a file is written, as said or found out, and what was noteworthy."""

    separator: str
    encoding: str
    notes: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """For pandas' reader."""
        return {"sep": self.separator, "encoding": self.encoding}


def csv_form(path: Path, csv: CsvSpec | None = None) -> CsvForm:
    """Find out separator and encoding from the beginning of a file."""
    said, notes = csv or CsvSpec(), []
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rb") as file:
        glance = file.read(_GLANCE)
    encoding = said.encoding or _encoding_of(glance)
    if said.encoding is None and encoding != "utf-8":
        notes.append(_encoding_note(encoding))
    separator = said.separator
    if separator is None:
        separator = "\t" if ".tsv" in path.name.lower() else _separator_of(glance, encoding)
        if separator not in (",", "\t"):
            notes.append(f"fields are separated by '{separator}'")
    return CsvForm(separator=separator, encoding=encoding, notes=tuple(notes))


def _encoding_of(glance: bytes) -> str:
    if glance.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    # A character may be cut at the end of what was read.
    for cut in range(4):
        try:
            glance[: len(glance) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return "utf-8"
    return "utf-8" if b"\x00" in glance else "cp1252"


def _encoding_note(encoding: str) -> str:
    written = "Latin-1 (cp1252)" if encoding == "cp1252" else encoding.upper()
    return f"the text is not UTF-8 and was read as {written}"


def _separator_of(glance: bytes, encoding: str) -> str:
    """The separator of the header: a comma, or what stands in its place."""
    header = re.split(r"[\r\n]", glance.decode(encoding, errors="replace").lstrip(), maxsplit=1)[0]
    outside = re.sub(r'"[^"]*"', "", header)
    counts = {item: outside.count(item) for item in _SEPARATORS}
    return "," if counts[","] else max(_SEPARATORS, key=lambda item: counts[item])


def read_table(
    path: Path, *, text_columns: Sequence[str] = (), csv: CsvSpec | None = None
) -> pd.DataFrame:
    """Read a table from CSV, TSV (also .gz) or Parquet, by the ending of its name.

    Args:
        path: The file.
        text_columns: Columns of a CSV file that stay text, with leading zeros and all.
        csv: How a CSV file is written, where that is not to be found out.

    Returns:
        The table.

    Raises:
        TableUnreadable: The file is missing, of no known kind, or damaged.
    """
    return read_noted_table(path, text_columns=text_columns, csv=csv)[0]


def read_noted_table(
    path: Path, *, text_columns: Sequence[str] = (), csv: CsvSpec | None = None
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Read a table as ``read_table`` does; the second is what was found out about the file."""
    if is_parquet(path):
        with readable_as("Parquet", path):
            return pd.read_parquet(path), ()
    said = csv or CsvSpec()
    with readable_as("CSV", path):
        form = csv_form(path, said)
        options: dict[str, Any] = {
            "dtype": dict.fromkeys([*text_columns, *said.dates], str),
            "index_col": False,
            "na_values": list(said.missing) or None,
            "decimal": said.decimal or ".",
            "thousands": said.thousands,
        }
        notes = list(form.notes)
        try:
            table = pd.read_csv(path, **options, **form.arguments)
        except UnicodeDecodeError:
            if said.encoding is not None or form.encoding != "utf-8":
                raise
            # The first letter that is not UTF-8 may stand far down.
            table = pd.read_csv(path, **options, sep=form.separator, encoding="cp1252")
            notes.append(_encoding_note("cp1252"))
    for name in table.columns:
        if name in text_columns or not pd.api.types.is_string_dtype(table[name]):
            continue
        if name in said.dates:
            table[name] = _dates(table[name], said.dates[name], path)
            continue
        found = _with_decimal_comma(table[name], form.separator, said)
        if found is not None:
            table[name] = found
            notes.append(f"column '{name}' has a decimal comma")
    absent = [name for name in said.dates if name not in table.columns]
    if absent:
        raise DataError(f"{path.name}: csv.dates names columns {absent}, which it does not have")
    return table, tuple(notes)


def _dates(column: pd.Series[Any], how: str, path: Path) -> pd.Series[Any]:
    """Dates of a given format, in UTC."""
    how = "ISO8601" if how == "iso" else how
    dates = pd.to_datetime(column, format=how, errors="coerce", utc=True)
    wrong = np.flatnonzero((dates.isna() & column.notna()).to_numpy())
    if wrong.size:
        raise DataError(
            f"{path.name}: column '{column.name}' has {wrong.size} values that are no date of the "
            f"format {how!r} (first at row {wrong[0]}); correct csv.dates, or the values"
        )
    return dates


def _with_decimal_comma(
    column: pd.Series[Any], separator: str, said: CsvSpec
) -> pd.Series[Any] | None:
    """The numbers of a column that is written with decimal commas; none if it is not."""
    if said.decimal is not None or said.thousands is not None:
        return None
    texts = column.dropna()
    first = texts.head(20)
    if not len(first) or not all(
        _WITH_COMMA.fullmatch(item) or _WHOLE.fullmatch(item) for item in first
    ):
        return None
    found = [(_WITH_COMMA.fullmatch(item), item) for item in texts]
    if not all(match or _WHOLE.fullmatch(item) for match, item in found):
        return None
    digits = {len(match.group(3)) for match, _ in found if match}
    # Where fields are separated by commas, "1,234" may be a thousand: nobody can tell.
    if not digits or (separator == "," and digits == {3}):
        return None
    plain = column.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
    return plain.astype(np.float64)


def plain_numbers(ids: pd.Index[Any]) -> pd.Index[Any]:
    """Ids of a CSV file, as the whole numbers that they are; as they were if one is none.

    Only numbers that would be written the same again count: ``007`` and ``+7`` stay text.
    """
    texts = ids.to_series().astype(str)
    if not len(ids) or not texts.str.fullmatch(_PLAIN_NUMBER).all():
        return ids
    return pd.Index(texts.astype(np.int64), name=ids.name)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table and its index: Parquet if the file's name ends so, else CSV."""
    if path.suffix.lower() in _PARQUET:
        write_atomically(path, table.reset_index().to_parquet(index=False))
    else:
        write_atomically(path, table.to_csv(index=True).encode())


def is_parquet(path: Path) -> bool:
    """Tell Parquet from CSV by the ending; a missing or unknown file raises TableUnreadable."""
    if path.is_dir():
        raise TableUnreadable(f"{path}: a directory, expected one file")
    if not path.is_file():
        raise TableUnreadable(
            f"{path}: no such file; check the path (in a TOML file, relative to it)"
        )
    name = path.name.lower()
    if name.endswith(_PARQUET):
        return True
    if name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt")):
        return False
    raise TableUnreadable(f"{path}: unknown kind of file; use .csv, .csv.gz, .tsv or .parquet")


@contextmanager
def readable_as(kind: str, path: Path) -> Iterator[None]:
    """Raise TableUnreadable with the reason for a file that can't be read."""
    try:
        with warnings.catch_warnings():
            # Without index_col=False, rows with one field too many shift every column.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            yield
    except ColonnadeError:
        raise
    except pd.errors.ParserWarning as error:
        raise TableUnreadable(
            f"{path}: rows have more fields than the header has names; remove trailing "
            "separators, or name every column"
        ) from error
    except pd.errors.EmptyDataError as error:
        raise TableUnreadable(f"{path}: the file is empty; it needs a header and rows") from error
    except (ArrowException, OSError, ValueError, EOFError, zlib.error) as error:
        raise TableUnreadable(f"{path}: not readable as {kind} ({str(error).strip()})") from error
