"""The id columns of a table, read piece by piece, so that a large table never fills the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from pyarrow import parquet

from colonnade.core.errors import ConfigError
from colonnade.data.table_files import csv_form, is_parquet, readable_as

__all__ = ["read_header", "read_id_columns"]

# Fields in memory at one time.
_AT_ONCE = 131_072


def read_header(path: Path) -> tuple[str, ...]:
    """The names of a table's columns, and nothing of its rows."""
    if is_parquet(path):
        with readable_as("Parquet", path), parquet.ParquetFile(path) as file:
            # Pandas knows which column is an index that it wrote itself.
            header = file.schema_arrow.empty_table().to_pandas()
    else:
        with readable_as("CSV", path):
            form = csv_form(path)
            header = pd.read_csv(path, nrows=0, index_col=False, **form.arguments)
    return tuple(str(name) for name in header.columns)


def read_id_columns(path: Path, columns: Sequence[str], *, where: str) -> Iterator[list[pd.Series]]:
    """Pieces of some columns, rows in the file's order; text is kept as written."""
    if is_parquet(path):
        with readable_as("Parquet", path), parquet.ParquetFile(path) as file:
            _require(file.schema_arrow.names, columns, path, where)
            for batch in file.iter_batches(_AT_ONCE // len(columns), columns=list(columns)):
                yield [batch.column(name).to_pandas() for name in columns]
        return
    with readable_as("CSV", path):
        form = csv_form(path)
        header = pd.read_csv(path, nrows=0, index_col=False, **form.arguments)
        _require(list(header.columns), columns, path, where)
        # Every column is read and the others are dropped, because with usecols a row with too many
        # fields would go unnoticed.
        num_rows = max(1024, _AT_ONCE // len(header.columns))
        with pd.read_csv(
            path, dtype=str, index_col=False, chunksize=num_rows, **form.arguments
        ) as pieces:
            for piece in pieces:
                yield [piece[name] for name in columns]


def _require(present: Sequence[str], wanted: Sequence[str], path: Path, where: str) -> None:
    absent = [name for name in wanted if name not in present]
    if absent:
        raise ConfigError(f"{where}.id: no column {absent} in {path.name}")
