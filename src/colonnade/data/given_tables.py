"""Blocks and labels from whatever a caller holds: tables, arrays, Arrow, polars, queries, files.

Rows are matched by id: an id column, the table's index, or ids beside the rows. A plain row index
(0, 1, 2, ...) is no id: two tables that were read from two files have the same one, whatever order
their rows are in. It counts where all of them are columns of one table, which pandas knows, or
where the caller says that rows are in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, DataError
from colonnade.data.blocks import Block, Labels, as_ids, label_values, make_block
from colonnade.data.label_columns import as_times, as_weights
from colonnade.data.sql_query import Sql
from colonnade.data.table_files import read_table

__all__ = ["ROW_ORDER", "BlockLike", "GivenData", "LabelsLike", "give", "row_ids"]

# What a caller says who knows that the rows of everything are in the same order.
ROW_ORDER = "row order"

# Also a pyarrow or polars table, and anything else that offers Arrow's stream.
BlockLike: TypeAlias = Any
LabelsLike: TypeAlias = Any


@dataclass(frozen=True, kw_only=True)
class GivenData:
    """Blocks by party, and the labels if there are any."""

    blocks: Mapping[str, Block]
    labels: Labels | None = None


def row_ids(count: int) -> np.ndarray[Any, Any]:
    """Row numbers as sample ids; their order as text is the order of the rows."""
    width = len(str(count))
    return np.array([f"{row:0{width}}" for row in range(count)], dtype=object)


def give(
    blocks: Mapping[str, BlockLike],
    labels: LabelsLike = None,
    *,
    label_holder: str | None = None,
    ids: Any = None,
    id_columns: Mapping[str, str] | None = None,
    weights: Any = None,
    time: str | None = None,
    is_new: bool = False,
) -> GivenData:
    """Make blocks and labels from what a caller gave.

    Args:
        blocks: Each party's table, array or file, by the party's name.
        labels: A series, an array, or the name of a column of the label holder's table; or none.
        label_holder: Who has the labels; needed where they are a column.
        ids: One id per row for everything, or ``ROW_ORDER``.
        id_columns: The column of each party's table that holds its ids. A table whose index has
            that name may leave it out.
        weights: What each labelled sample counts: a series, an array, or the name of a column of
            the label holder's table; or none.
        time: The column of the label holder's table by which samples are split, if any.
        is_new: Whether the blocks are samples to predict, of a federation that is trained: then
            equal row indexes count as ids, because pieces of one table can't be told from others.

    Returns:
        The blocks and labels under their ids.

    Raises:
        ConfigError: A party's name can't be used, or an argument names what is not there.
        DataError: A block can't be used, or nothing says which rows belong together.
    """
    _check_names(blocks, id_columns or {})
    tables = {name: _as_values(item, f"block of party '{name}'") for name, item in blocks.items()}
    taken: dict[str, Any] = {"labels": labels, "sample_weight": weights, "data.split.time": time}
    for said, name in taken.items():
        if isinstance(name, str):
            column = (id_columns or {}).get(label_holder or "")
            taken[said], tables = _holder_column(said, name, tables, label_holder, column)
    labels = _as_series(taken["labels"])
    if isinstance(ids, str):
        return _with_columns(_in_row_order(tables, labels, ids), taken, by_row=True)
    made, rows = {}, {}
    for name, values in tables.items():
        if isinstance(values, Block):
            made[name] = values
            continue
        column = (id_columns or {}).get(name)
        is_table = isinstance(values, pd.DataFrame)
        if not is_table or column == values.index.name:  # type: ignore[union-attr]
            column = None
        like = next(iter(made.values()), None)
        made[name] = make_block(name, values, ids=ids, id_column=column, like=like)
        if ids is None and column is None and is_table:
            rows[f"the block of '{name}'"] = values.index  # type: ignore[union-attr]
    if isinstance(labels, pd.Series) and ids is None:
        rows["the labels"] = labels.index
    if not is_new:
        _refuse_separate_rows(rows)
    given = GivenData(blocks=made, labels=_labels(labels, ids))
    return _with_columns(given, taken, by_row=ids is not None)


def _with_columns(given: GivenData, taken: Mapping[str, Any], *, by_row: bool) -> GivenData:
    """The same with sample weights and times beside the labels, where there are some."""
    if given.labels is None:
        return given
    found = {}
    for said in ("sample_weight", "data.split.time"):
        column = _as_series(taken[said])
        if isinstance(column, pd.Series) and not by_row:
            places = pd.Index(as_ids(column.index, said)).get_indexer(pd.Index(given.labels.ids))
            absent = int((places < 0).sum())
            if absent:
                raise DataError(f"{said}: none for {absent} of {len(places)} labelled samples")
            column = column.iloc[places]
        found[said] = column
    weights, times = found.values()
    labels = replace(
        given.labels,
        weights=None if weights is None else as_weights(weights, "sample_weight"),
        times=None if times is None else as_times(times),
    )
    return replace(given, labels=labels)


def _check_names(blocks: Any, id_columns: Mapping[str, str]) -> None:
    if not isinstance(blocks, Mapping):
        raise ConfigError(
            f"blocks: expected each party's table by the party's name, got {_kind_of(blocks)}"
        )
    for name in blocks:
        if not isinstance(name, str):
            raise ConfigError(f"party name {name!r}: expected a text, e.g. 'party {name}'")
    by_letters: dict[str, str] = {}
    for name in blocks:
        other = by_letters.setdefault(name.casefold(), name)
        if other != name:
            raise ConfigError(
                f"parties '{other}' and '{name}' differ in capital letters only, and their "
                "directories may be one; rename one of them"
            )
    for name in id_columns:
        if name not in blocks:
            raise ConfigError(f"id_column: no party '{name}'{nearest(name, list(blocks))}")


def _kind_of(item: Any) -> str:
    return f"{type(item).__module__}.{type(item).__name__}".removeprefix("builtins.")


def _as_values(item: Any, where: str) -> Block | pd.DataFrame | np.ndarray[Any, Any]:
    """A table or an array, whatever the form it comes in."""
    if isinstance(item, Block):
        return item
    if isinstance(item, Sql):
        return item.read(where)
    if isinstance(item, str | Path):
        item = read_table(Path(item).expanduser())
    elif isinstance(item, pd.Series):
        item = item.to_frame("x0" if item.name is None else item.name)
    elif not isinstance(item, pd.DataFrame) and hasattr(item, "collect"):
        item = item.collect()  # polars' lazy tables
    if isinstance(item, pd.DataFrame):
        for axis, index in (("index", item.index), ("columns", item.columns)):
            if isinstance(index, pd.MultiIndex):
                remedy = "reset_index(), and name one column in id_column"
                raise DataError(
                    f"{where}: {index.nlevels} levels of its {axis}; "
                    + (remedy if axis == "index" else "give every column one name")
                )
        return item
    if hasattr(item, "__arrow_c_stream__"):
        table: pd.DataFrame = pa.table(item).to_pandas()
        return table
    if hasattr(item, "detach"):
        item = item.detach().cpu().numpy()
    if isinstance(item, np.ndarray) and item.ndim:
        if item.dtype.kind in "OUSMmV":
            raise DataError(
                f"{where}: an array of {item.dtype}, expected numbers; give a table, whose columns "
                "have types of their own"
            )
        return item
    remedy = "; call its toarray()" if hasattr(item, "toarray") else ""
    raise DataError(
        f"{where}: expected a table (pandas, polars, Arrow), an array, a query (Sql) or a file's "
        f"path, got {_kind_of(item)}{remedy}"
    )


def _holder_column(
    said: str, column: str, tables: Mapping[str, Any], holder: str | None, id_column: str | None
) -> tuple[pd.Series[Any], dict[str, Any]]:
    """A column out of the label holder's own table, and the tables without it."""
    having = [
        name
        for name, item in tables.items()
        if column in (item.columns if isinstance(item, pd.DataFrame) else ())
    ]
    own = tables.get(holder) if holder is not None else None
    if not isinstance(own, pd.DataFrame):
        hint = f"; label_holder={having[0]!r} has it" if len(having) == 1 else ""
        raise ConfigError(
            f"{said}: '{column}' is a column's name, so the label holder must have a table, and "
            f"'{holder}' has none{hint}"
        )
    if holder not in having:
        hint = f"; '{having[0]}' has it" if having else nearest(column, [str(c) for c in own])
        raise ConfigError(f"{said}: the table of '{holder}' has no column '{column}'{hint}")
    assert holder is not None
    found = own[column]
    if id_column is not None and id_column in own.columns:
        found = found.set_axis(own[id_column])
    return found, {**tables, holder: own.drop(columns=[column])}


def _as_series(labels: Any) -> Any:
    """Labels as a series, an array or Labels."""
    if labels is None or isinstance(labels, Labels | pd.Series | np.ndarray):
        return labels
    if hasattr(labels, "to_frame") and hasattr(labels, "to_arrow"):
        labels = labels.to_frame()  # a polars series
    if isinstance(labels, pd.DataFrame) or hasattr(labels, "__arrow_c_stream__"):
        table = _as_values(labels, "labels")
        assert isinstance(table, pd.DataFrame)
        if len(table.columns) != 1:
            raise DataError(
                f"labels: a table of {len(table.columns)} columns; give the one that holds the "
                "labels"
            )
        column = table.iloc[:, 0]
        # Arrow has no index: rows are in the order of whatever ids say.
        return column if isinstance(labels, pd.DataFrame) else column.to_numpy()
    if isinstance(labels, Iterable):
        return np.asarray(list(labels))
    raise DataError(f"labels: expected a series or an array, got {_kind_of(labels)}")


def _labels(labels: Any, ids: Any) -> Labels | None:
    if labels is None or isinstance(labels, Labels):
        return labels
    if isinstance(labels, pd.Series):
        keys = labels.index if ids is None else ids
        return Labels(
            ids=as_ids(keys, "labels"), values=label_values(labels), name=_name_of(labels)
        )
    if ids is None:
        raise DataError(
            "labels: an array has no ids; pass ids=, a series with ids as index, or "
            f"ids={ROW_ORDER!r} if all rows are in the same order"
        )
    return Labels(ids=as_ids(ids, "labels"), values=np.asarray(labels))


def _name_of(labels: pd.Series[Any]) -> str:
    return "label" if labels.name is None else str(labels.name)


def _in_row_order(tables: Mapping[str, Any], labels: Any, said: str) -> GivenData:
    """Everything under row numbers, which all have in the same order."""
    if said != ROW_ORDER:
        raise ConfigError(
            f"ids: expected one id per row, or {ROW_ORDER!r}, got {said!r}; a column's name is "
            "given by id_column"
        )
    counts = {f"'{name}' {len(_rows(item))}": len(_rows(item)) for name, item in tables.items()}
    if labels is not None:
        values = labels.values if isinstance(labels, Labels) else labels
        counts[f"labels {len(values)}"] = len(values)
    if len(set(counts.values())) > 1:
        raise DataError(
            f"ids={ROW_ORDER!r}: everything needs as many rows, got {', '.join(counts)}; match "
            "rows by an id column instead"
        )
    count = next(iter(counts.values()), 0)
    ids = row_ids(count)
    made = {}
    for name, item in tables.items():
        values = _rows(item)
        block = make_block(name, values, ids=ids)
        keys = values.index if isinstance(values, pd.DataFrame) else pd.RangeIndex(count)
        made[name] = block.under(keys)
    if isinstance(labels, Labels):
        return GivenData(
            blocks=made, labels=Labels(ids=ids, values=labels.values, name=labels.name)
        )
    elif isinstance(labels, pd.Series):
        labels = Labels(ids=ids, values=label_values(labels), name=_name_of(labels))
    return GivenData(blocks=made, labels=_labels(labels, ids))


def _rows(item: Any) -> Any:
    return item.values if isinstance(item, Block) else item


def _is_plain(index: pd.Index[Any]) -> bool:
    """Whether an index only counts rows."""
    if index.name is not None:
        return False
    if isinstance(index, pd.RangeIndex):
        return True
    return index.dtype.kind in "iu" and bool(np.array_equal(index, np.arange(len(index))))


def _refuse_separate_rows(rows: Mapping[str, pd.Index[Any]]) -> None:
    """Refuse to match rows by their number unless they are rows of one table."""
    plain = {name: index for name, index in rows.items() if _is_plain(index)}
    if len(plain) < 2:
        return
    first = next(iter(plain.values()))
    apart = [name for name, index in plain.items() if not index.is_(first)]
    if apart:
        others = " and ".join([next(iter(plain)), *apart])
        raise DataError(
            f"{others}: their index only counts rows (0, 1, 2, ...), so nothing says which rows "
            "belong together; name the column that holds the sample ids with id_column=, or make "
            f"it the index; if all rows are in the same order, pass ids={ROW_ORDER!r}"
        )
