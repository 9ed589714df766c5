"""The label holder's table: labels, and beside them sample weights and the time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from colonnade.core.errors import DataError
from colonnade.data.blocks import Labels, as_ids, label_values, require_columns
from colonnade.data.column_kinds import as_days, as_numbers
from colonnade.data.table_files import CsvSpec, read_noted_table

__all__ = [
    "NOTHING_BESIDE",
    "BesideLabels",
    "as_times",
    "as_weights",
    "beside_labels",
    "read_labels",
]

Array = np.ndarray[Any, Any]


class BesideLabels(NamedTuple):
    """One number for every labelled row, of each that the settings name.

    Attributes:
        weights: What a sample counts in the loss.
        times: When it was, as a number that grows.
    """

    weights: Array | None = None
    times: Array | None = None


NOTHING_BESIDE = BesideLabels()


def beside_labels(
    table: pd.DataFrame, weight: str | None, time: str | None, where: str
) -> BesideLabels:
    """Take the named columns out of the table that holds the labels.

    Args:
        table: The table.
        weight: The column with sample weights, if any.
        time: The column with numbers or dates to split by, if any.
        where: Which table it is, for messages.

    Returns:
        Their numbers, a row each.

    Raises:
        DataError: A column is not there, or can't be used.
    """
    require_columns(table, [name for name in (weight, time) if name is not None], where)
    return BesideLabels(
        weights=None if weight is None else as_weights(table[weight], f"sample weights '{weight}'"),
        times=None if time is None else as_times(table[time]),
    )


def read_labels(
    path: Path,
    *,
    id_column: str,
    column: str,
    weight: str | None = None,
    time: str | None = None,
    csv: CsvSpec | None = None,
) -> Labels:
    """Read labels from a file.

    Args:
        path: The file: CSV, TSV or Parquet.
        id_column: The column that holds the ids.
        column: The column that holds the labels.
        weight: The column with sample weights, if any.
        time: The column to split by, if any.
        csv: How a CSV file is written, where that is not to be found out.

    Returns:
        The labels.

    Raises:
        DataError: The file can't be read, or a column, an id or a label is missing.
    """
    table, _ = read_noted_table(path, text_columns=[id_column], csv=csv)
    where = f"labels '{column}' in {path.name}"
    require_columns(table, [id_column, column], where)
    ids = as_ids(table[id_column], where)
    beside = beside_labels(table, weight, time, where)
    return Labels(ids=ids, values=label_values(table[column]), name=column, **beside._asdict())


def as_weights(values: Sequence[float] | Array | pd.Series[Any], where: str) -> Array:
    """Sample weights as numbers.

    Args:
        values: One weight per sample.
        where: What they are, for messages.

    Returns:
        (samples,) float64.

    Raises:
        DataError: One is negative, missing or no number, or none is above 0.
    """
    try:
        numbers = as_numbers(pd.Series(values))
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: expected numbers; a weight is 0 or above") from error
    wrong = np.flatnonzero(~np.isfinite(numbers) | (numbers < 0))
    if wrong.size:
        raise DataError(
            f"{where}: {wrong.size} are negative, infinite or missing (first at row {wrong[0]}); a "
            "weight is a number from 0"
        )
    return numbers


def as_times(column: pd.Series[Any]) -> Array:
    """Dates or numbers to split by, as numbers that grow.

    Args:
        column: One per sample.

    Returns:
        (samples,) float64; of dates the days since 1970 in UTC.

    Raises:
        DataError: It holds something else, or one is missing.
    """
    said = f"data.split.time: column '{column.name}'"
    try:
        is_number = pd.api.types.is_numeric_dtype(column)
        times = as_numbers(column) if is_number else as_days(column)
    except (TypeError, ValueError) as error:
        raise DataError(f"{said} holds neither dates nor numbers; name one that does") from error
    missing = np.flatnonzero(~np.isfinite(times))
    if missing.size:
        raise DataError(
            f"{said} has {missing.size} missing values (first at row {missing[0]}); fill them, or "
            "leave those samples out"
        )
    return times
