"""A block: the columns that one party holds, row by row under a sample id.

Ids are compared as text, so ``7`` in one party's Parquet file and ``"7"`` in another's CSV are the
same sample. Nothing is ever matched by row order. Messages about ids give counts and row numbers,
never an id: ids are personal data and messages end up in logs.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyarrow import ArrowException

from colonnade.core.errors import ColonnadeError, ConfigError, DataError, TableUnreadable

__all__ = [
    "Block",
    "Labels",
    "as_ids",
    "make_block",
    "read_block",
    "read_labels",
    "read_table",
    "require_columns",
]


# A party's name is also the name of its directory.
_LONGEST_NAME = 60


@dataclass(frozen=True, kw_only=True)
class Block:
    """One party's columns: a table, or an array with one sample per row (images, sequences)."""

    owner: str
    ids: np.ndarray[Any, Any]
    values: pd.DataFrame | np.ndarray[Any, Any]
    # Where each row was before rows were chosen, so that messages name the owner's own rows.
    origin: np.ndarray[Any, Any] | None = None

    def __post_init__(self) -> None:
        if not self.owner or len(self.owner) > _LONGEST_NAME:
            raise ConfigError(
                f"party name '{self.owner[:20]}': needs 1 to {_LONGEST_NAME} characters"
            )
        check_unique(self.ids, f"block of party '{self.owner}'")
        if len(self.values) != len(self.ids):
            raise DataError(
                f"block of party '{self.owner}': {len(self.ids)} ids for {len(self.values)} rows; "
                "give exactly one id per row"
            )
        if len(self.ids) == 0:
            raise DataError(f"block of party '{self.owner}' has no rows; give it at least one")
        if isinstance(self.values, pd.DataFrame):
            names = [str(name) for name in self.values.columns]
            if not names:
                raise DataError(f"block of party '{self.owner}' has no columns besides the id")
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise DataError(
                    f"block of party '{self.owner}': column names {twice} occur more than once; "
                    "rename or drop the repeats"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; empty for an array."""
        if isinstance(self.values, pd.DataFrame):
            return tuple(str(name) for name in self.values.columns)
        return ()

    def take(self, rows: np.ndarray[Any, Any]) -> Block:
        """The same block with these rows only, in this order."""
        values = self.values
        chosen = values.iloc[rows] if isinstance(values, pd.DataFrame) else values[rows]
        origin = rows if self.origin is None else self.origin[rows]
        return Block(owner=self.owner, ids=self.ids[rows], values=chosen, origin=origin)

    def first_row(self, rows: np.ndarray[Any, Any]) -> int:
        """The first of these rows, as its owner counts them."""
        return int(rows[0] if self.origin is None else self.origin[rows].min())


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What is to be predicted, by sample id."""

    ids: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    name: str = "label"

    def __post_init__(self) -> None:
        check_unique(self.ids, f"labels '{self.name}'")
        if len(self.values) != len(self.ids):
            raise DataError(
                f"labels '{self.name}': {len(self.ids)} ids for {len(self.values)} values; "
                "give exactly one id per label"
            )
        missing = np.flatnonzero(pd.isna(self.values))
        if missing.size:
            raise DataError(
                f"labels '{self.name}': {missing.size} of {len(self.values)} are missing "
                f"(first at row {missing[0]}); remove those samples or fill them in"
            )


def as_ids(values: Any, where: str) -> np.ndarray[Any, Any]:
    """Sample ids as text, whatever type they came in; missing ids are refused."""
    column = pd.Series(values).reset_index(drop=True)
    missing = np.flatnonzero(column.isna().to_numpy())
    if missing.size:
        raise DataError(
            f"{where}: {missing.size} rows have no id (first at row {missing[0]}); "
            "every row needs one"
        )
    if pd.api.types.is_float_dtype(column):
        whole = column.to_numpy()
        if not np.isfinite(whole).all():
            raise DataError(f"{where}: some ids are infinite; use text or whole numbers")
        if not np.array_equal(whole, np.floor(whole)):
            raise DataError(f"{where}: ids are fractional numbers; use text or whole numbers")
        column = column.astype("int64")
    return column.astype(str).to_numpy(dtype=object)


def check_unique(ids: np.ndarray[Any, Any], where: str) -> None:
    """Refuse duplicate ids, saying how many and where, never which."""
    repeated = pd.Series(ids).duplicated().to_numpy()
    if repeated.any():
        rows = np.flatnonzero(repeated)
        raise DataError(
            f"{where}: {len(rows)} duplicate ids (first repeat at row {rows[0]}); "
            "keep one row per id"
        )


def make_block(
    owner: str,
    values: pd.DataFrame | np.ndarray[Any, Any],
    *,
    ids: Any = None,
    id_column: str | None = None,
    columns: Sequence[str] | None = None,
) -> Block:
    """Make a block from a table with an id column, or from a table or an array with ids beside it.

    A table given with neither uses its index as ids.
    """
    where = f"block of party '{owner}'"
    if not isinstance(values, pd.DataFrame):
        if ids is None:
            raise DataError(f"{where}: an array has no ids of its own; pass ids, one per row")
        array = np.asarray(values)
        if array.ndim == 1:
            array = array[:, None]
        return Block(owner=owner, ids=as_ids(ids, where), values=array)
    if id_column is not None:
        require_columns(values, [id_column], where)
        ids = values[id_column]
        values = values.drop(columns=[id_column])
    elif ids is None:
        ids = values.index
    if columns is not None:
        require_columns(values, columns, where)
        values = values[list(columns)]
    return Block(owner=owner, ids=as_ids(ids, where), values=values.reset_index(drop=True))


def require_columns(table: pd.DataFrame, columns: Sequence[str], where: str) -> None:
    """Refuse columns that the table does not have, naming those that it has."""
    absent = [name for name in columns if name not in table.columns]
    if absent:
        shown = ", ".join(map(str, list(table.columns)[:12]))
        raise DataError(f"{where}: no column {absent}; it has: {shown}")


def read_table(path: Path, *, text_columns: Sequence[str] = ()) -> pd.DataFrame:
    """Read CSV (also .gz) or Parquet by its ending; ``text_columns`` are kept as written."""
    if is_parquet(path):
        with readable_as("Parquet", path):
            return pd.read_parquet(path)
    with readable_as("CSV", path):
        types = dict.fromkeys(text_columns, str)
        return pd.read_csv(path, sep=separator_of(path), dtype=types, index_col=False)


def is_parquet(path: Path) -> bool:
    """Whether a table is Parquet, by its ending; refuse a file that is not there or of no kind."""
    if not path.is_file():
        raise TableUnreadable(
            f"{path}: no such file; check the path (in a TOML file, relative to it)"
        )
    name = path.name.lower()
    if name.endswith((".parquet", ".pq")):
        return True
    if name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt")):
        return False
    raise TableUnreadable(f"{path}: unknown kind of file; use .csv, .csv.gz, .tsv or .parquet")


def separator_of(path: Path) -> str:
    """What stands between the fields of a file that is not Parquet."""
    return "\t" if ".tsv" in path.name.lower() else ","


@contextmanager
def readable_as(kind: str, path: Path) -> Iterator[None]:
    """Say what is wrong with a file that can't be read."""
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


def read_block(
    owner: str, path: Path, *, id_column: str, columns: Sequence[str] | None = None
) -> Block:
    """Read one party's block from a file with an id column."""
    table = read_table(path, text_columns=[id_column])
    return make_block(owner, table, id_column=id_column, columns=columns)


def read_labels(path: Path, *, id_column: str, column: str) -> Labels:
    """Read labels from a file with an id column."""
    table = read_table(path, text_columns=[id_column])
    where = f"labels '{column}' in {path.name}"
    require_columns(table, [id_column, column], where)
    values = table[column].to_numpy()
    return Labels(ids=as_ids(table[id_column], where), values=values, name=column)
