"""Blocks and labels: one party's columns and the values to predict, each row under a sample id.

Ids are compared as text (``sample_ids``). Rows are never matched by their order. Messages about ids
give counts and row numbers, never an id: ids are personal data and messages end up in logs. Columns
become numbers in ``prepare``; ids of several parties are matched in ``run`` and in
``colonnade.align``.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.core.errors import ConfigError, DataError
from colonnade.data.sample_ids import HeldIds, IdsField, NumberIds, as_ids, check_unique, held_ids
from colonnade.data.table_files import CsvSpec, is_parquet, plain_numbers, read_noted_table

__all__ = [
    "Block",
    "Labels",
    "as_ids",
    "label_values",
    "make_block",
    "read_block",
    "require_columns",
]


_LONGEST_NAME = 60


@dataclass(frozen=True, kw_only=True)
class Block:
    """One party's columns: a table, or an array with one sample per row (images, sequences).

    Args:
        owner: The party's name, which is also the name of its directory.
        ids: The sample id of each row, as text.
        values: The rows.
        origin: The row numbers before rows were chosen, so that messages name the owner's rows.
        keys: The ids as the owner writes them: of their own type, under their own name.
        notes: What was seen when the block was read from a file.
        like: A block whose ids were looked at already, if they may be the same array.
        names: The names of the columns, if whoever makes the block has read them.

    Raises:
        ConfigError: The name is empty or too long.
        DataError: There is no row or column, an id or column name is there twice, or the numbers
            of ids and rows differ.
    """

    owner: str
    ids: IdsField = IdsField()  # noqa: RUF009 - a descriptor, no default
    values: pd.DataFrame | np.ndarray[Any, Any]
    origin: np.ndarray[Any, Any] | None = None
    keys: pd.Index | None = None  # without [Any]: get_type_hints reads it
    notes: tuple[str, ...] = ()
    like: InitVar[Block | None] = None
    names: InitVar[tuple[str, ...] | None] = None

    def __post_init__(self, like: Block | None, names: tuple[str, ...] | None) -> None:
        if names is not None:
            # Reading them costs as much as a small network: it is done once a block.
            vars(self)["columns"] = names
        if not self.owner or len(self.owner) > _LONGEST_NAME:
            raise ConfigError(
                f"party name '{self.owner[:20]}': needs 1 to {_LONGEST_NAME} characters"
            )
        if like is None or like._held_ids is not self._held_ids:
            check_unique(self._held_ids, f"block of party '{self.owner}'")
        num_ids = len(self._held_ids)
        if len(self.values) != num_ids:
            raise DataError(
                f"block of party '{self.owner}': {num_ids} ids for {len(self.values)} rows; "
                "give exactly one id per row"
            )
        if num_ids == 0:
            raise DataError(f"block of party '{self.owner}' has no rows; give it at least one")
        if isinstance(self.values, pd.DataFrame):
            found = self.columns
            if not found:
                raise DataError(f"block of party '{self.owner}' has no columns besides the id")
            if len(set(found)) < len(found):
                twice = sorted({name for name in found if found.count(name) > 1})
                raise DataError(
                    f"block of party '{self.owner}': column names {twice} occur more than once; "
                    "rename or drop the repeats"
                )

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; empty for an array."""
        if isinstance(self.values, pd.DataFrame):
            return tuple(map(str, self.values.columns.tolist()))
        return ()

    @property
    def _held_ids(self) -> HeldIds:
        """The ids, without making text of them."""
        held: HeldIds = vars(self)["ids"]
        return held

    def has_ids_of(self, other: Block) -> bool:
        """Whether another block has the same samples.

        Args:
            other: The other block.

        Returns:
            Whether the ids are the same, in the same order.
        """
        mine, its = self._held_ids, other._held_ids
        if mine is its:
            return True
        if isinstance(mine, NumberIds) and isinstance(its, NumberIds) and mine.are_those_of(its):
            return True
        return bool(np.array_equal(self.ids, other.ids))

    def take(self, rows: np.ndarray[Any, Any]) -> Block:
        """Choose rows.

        Args:
            rows: Row numbers of this block.

        Returns:
            A block with these rows only, in this order.
        """
        values = self.values
        chosen = values.iloc[rows] if isinstance(values, pd.DataFrame) else values[rows]
        return replace(
            self,
            ids=self.ids[rows],
            values=chosen,
            origin=rows if self.origin is None else self.origin[rows],
            keys=None if self.keys is None else self.keys[rows],
        )

    def under(self, keys: pd.Index) -> Block:
        """The same block under other keys.

        Args:
            keys: What the owner calls each row.

        Returns:
            The block; its ids are as before.
        """
        return replace(self, keys=keys)

    def first_row(self, rows: np.ndarray[Any, Any]) -> int:
        """Find the first of some rows in the owner's own table.

        Args:
            rows: Row numbers of this block, at least one.

        Returns:
            The smallest row number, as the owner counts rows.
        """
        return int(rows[0] if self.origin is None else self.origin[rows].min())


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The values to predict, by sample id.

    Args:
        ids: The sample id of each value, as text.
        values: A class or a number for each id.
        name: The name of the label in messages.
        weights: What each sample counts in the loss; all alike if not given.
        times: When each sample was, where samples are split by time.

    Raises:
        DataError: An id is there twice, a value is missing, or the numbers differ.
    """

    ids: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    name: str = "label"
    weights: np.ndarray[Any, Any] | None = None
    times: np.ndarray[Any, Any] | None = None

    def __post_init__(self) -> None:
        check_unique(self.ids, f"labels '{self.name}'")
        for what, given in (("sample weights", self.weights), ("times", self.times)):
            if given is not None and len(given) != len(self.ids):
                raise DataError(f"{what}: {len(given)} for {len(self.ids)} labels; give one each")
        if len(self.values) != len(self.ids):
            raise DataError(
                f"labels '{self.name}': {len(self.ids)} ids for {len(self.values)} values; "
                "give exactly one id per label"
            )
        if self.values.ndim != 1:
            raise DataError(
                f"labels '{self.name}': {self.values.ndim} dimensions, expected one value per "
                "sample; of one-hot classes give argmax(axis=1)"
            )
        missing = np.flatnonzero(pd.isna(self.values))
        if missing.size:
            raise DataError(
                f"labels '{self.name}': {missing.size} of {len(self.values)} are missing "
                f"(first at row {missing[0]}); remove those samples or fill them in"
            )
        found = pd.api.types.infer_dtype(self.values, skipna=True)
        if found not in _KINDS_OF_LABELS:
            raise DataError(
                f"labels '{self.name}': values of kind '{found}', expected classes (text, whole "
                "numbers, true or false) or numbers; turn dates into numbers, e.g. days"
            )


# As pandas calls them. Mixtures of texts and numbers have a message of their own later.
_KINDS_OF_LABELS = frozenset(
    {"string", "floating", "integer", "boolean", "mixed-integer", "mixed-integer-float"}
)


def label_values(column: pd.Series[Any]) -> np.ndarray[Any, Any]:
    """A column of labels as an array.

    Args:
        column: The labels.

    Returns:
        The values; decimals from a data base are numbers.
    """
    values = column.to_numpy()
    if values.dtype == object and pd.api.types.infer_dtype(values, skipna=True) == "decimal":
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return values


def make_block(
    owner: str,
    values: pd.DataFrame | np.ndarray[Any, Any],
    *,
    ids: Any = None,
    id_column: str | None = None,
    columns: Sequence[str] | None = None,
    like: Block | None = None,
) -> Block:
    """Make a block from a table or an array.

    Args:
        owner: The party's name.
        values: A table, or an array with one sample per row.
        ids: One id per row; an array needs them.
        id_column: The column of the table that holds the ids. With neither, the index does.
        columns: The columns of the table to take; by default all but the ids.
        like: A block that may have the same ids: they are then not turned into text again.

    Returns:
        The block.

    Raises:
        ConfigError: The party's name can't be used.
        DataError: A column or an id is missing, or the block is not well formed.
    """
    where = f"block of party '{owner}'"
    if not isinstance(values, pd.DataFrame):
        if ids is None:
            raise DataError(f"{where}: an array has no ids of its own; pass ids, one per row")
        array = np.asarray(values)
        if array.ndim == 1:
            array = array[:, None]
        return Block(owner=owner, ids=held_ids(ids, where), values=array, keys=_keys(ids))
    if id_column is not None:
        require_columns(values, [id_column], where)
        ids = values[id_column]
        values = values.drop(columns=[id_column])
    elif ids is None:
        ids = values.index
    if columns is not None:
        require_columns(values, columns, where)
        values = values[list(columns)]
    names = values.columns.tolist()
    if not all(isinstance(name, str) for name in names):
        # Columns may be named by numbers; a number is then a name, never a position.
        names = list(map(str, names))
        values = values.set_axis(names, axis=1)
    made = like._held_ids if like and _has_keys(like, ids) else held_ids(ids, where)
    return Block(
        owner=owner,
        ids=made,
        values=values.reset_index(drop=True),
        keys=_keys(ids),
        like=like,
        names=tuple(names),
    )


def _has_keys(block: Block, ids: Any) -> bool:
    """Whether these are a block's keys: of a type whose equal values are the same text."""
    keys = block.keys
    if keys is None or not isinstance(ids, pd.Index) or ids.dtype != keys.dtype:
        return False
    is_plain = isinstance(ids.dtype, pd.StringDtype) or ids.dtype.kind in "iu"
    return is_plain and keys.equals(ids)


def _keys(ids: Any) -> pd.Index[Any]:
    return ids if isinstance(ids, pd.Index) else pd.Index(ids)


def require_columns(table: pd.DataFrame, columns: Sequence[str], where: str) -> None:
    """Check that a table has some columns.

    Args:
        table: The table.
        columns: The names that it must have.
        where: The place that a message names.

    Raises:
        DataError: A column is missing; the message lists the columns that are there.
    """
    known = set(table.columns.tolist())
    absent = [name for name in columns if name not in known]
    if absent:
        shown = ", ".join(map(str, list(table.columns)[:12]))
        more = len(table.columns) - 12
        shown += f" and {more} more" if more > 0 else ""
        close = [_close(str(name), [str(item) for item in table.columns]) for name in absent]
        raise DataError(f"{where}: no column {absent}; it has: {shown}{''.join(close[:1])}")


def _close(name: str, names: Sequence[str]) -> str:
    """A hint at the column that was meant, if one is written almost alike."""
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return f"; did you mean '{found[0]}'?" if found else ""


def read_block(
    owner: str,
    path: Path,
    *,
    id_column: str,
    columns: Sequence[str] | None = None,
    csv: CsvSpec | None = None,
) -> Block:
    """Read one party's block from a file.

    Args:
        owner: The party's name.
        path: The file: CSV, TSV or Parquet.
        id_column: The column that holds the ids.
        columns: The columns to take; by default all but the ids.
        csv: How a CSV file is written, where that is not to be found out.

    Returns:
        The block.

    Raises:
        DataError: The file can't be read, or a column or an id is missing.
    """
    table, notes = read_noted_table(path, text_columns=[id_column], csv=csv)
    block = make_block(owner, table, id_column=id_column, columns=columns)
    assert block.keys is not None
    keys = block.keys if is_parquet(path) else plain_numbers(block.keys)
    return replace(block, notes=notes, keys=keys)
