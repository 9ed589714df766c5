"""The id columns of a table alone, piece by piece: a table of millions is never in memory whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from pyarrow import parquet

from colonnade.core.errors import ConfigError
from colonnade.data.blocks import is_parquet, readable_as, separator_of

__all__ = ["read_header", "read_id_columns"]

# Fields in memory at one time.
_AT_ONCE = 131_072


def read_header(path: Path) -> tuple[str, ...]:
    """The names of a table's columns, and nothing of its rows."""
    if is_parquet(path):
        with readable_as("Parquet", path), parquet.ParquetFile(path) as file:
            # By way of pandas, which knows which of them is an index that it wrote.
            header = file.schema_arrow.empty_table().to_pandas()
    else:
        with readable_as("CSV", path):
            header = pd.read_csv(path, sep=separator_of(path), nrows=0, index_col=False)
    return tuple(str(name) for name in header.columns)


def read_id_columns(path: Path, columns: Sequence[str], *, where: str) -> Iterator[list[pd.Series]]:
    """Pieces of some columns, rows in the file's order; text is kept as written."""
    if is_parquet(path):
        with readable_as("Parquet", path), parquet.ParquetFile(path) as file:
            _require(file.schema_arrow.names, columns, path, where)
            for batch in file.iter_batches(_AT_ONCE // len(columns), columns=list(columns)):
                yield [batch.column(name).to_pandas() for name in columns]
        return
    separator = separator_of(path)
    with readable_as("CSV", path):
        header = pd.read_csv(path, sep=separator, nrows=0, index_col=False)
        _require(list(header.columns), columns, path, where)
        # Every column is read, and the others are dropped: a row with too many fields must not go
        # unnoticed, and with usecols it does.
        num_rows = max(1024, _AT_ONCE // len(header.columns))
        with pd.read_csv(
            path, sep=separator, dtype=str, index_col=False, chunksize=num_rows
        ) as pieces:
            for piece in pieces:
                yield [piece[name] for name in columns]


def _require(present: Sequence[str], wanted: Sequence[str], path: Path, where: str) -> None:
    absent = [name for name in wanted if name not in present]
    if absent:
        raise ConfigError(f"{where}.id: no column {absent} in {path.name}")
