"""How each column of a block is understood, and what about it deserves a second look.

What can't be used at all is refused in ``column_kinds`` and ``leaks``; here are the doubts: columns
that nearly give the label away, numbers that look like ids, categories of very many values.
Messages give counts and names of columns, never a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from colonnade.core.errors import ColonnadeError, DataError
from colonnade.core.task import TaskKind
from colonnade.data.blocks import Block
from colonnade.data.column_kinds import ColumnKind, as_days, as_numbers, kind_of
from colonnade.data.prepare import Preparation, PrepareSpec

__all__ = ["ColumnView", "column_doubts", "column_views"]

Array = np.ndarray[Any, Any]

# From here on a column by itself nearly is the answer: AUC, accuracy or correlation.
_GIVES_AWAY = 0.99
_ORDERS = 0.999
# So many rows are looked at for that.
_MOST_ROWS = 5_000
_LEAST_ROWS = 50
_MANY_LEVELS = 500


@dataclass(frozen=True, kw_only=True)
class ColumnView:
    """How one column is understood: its kind, and how many numbers of it an encoder gets."""

    name: str
    kind: str
    num_distinct: int
    num_missing: int
    width: int

    def __str__(self) -> str:
        what = {"number": "numbers", "date": "dates, as days", "category": "categories"}[self.kind]
        if self.kind == "category":
            what += f", {self.num_distinct} values in {self.width} columns"
        gaps = f", {self.num_missing} missing" if self.num_missing else ""
        return f"{self.name}: {what}{gaps}"


def column_views(block: Block, spec: PrepareSpec) -> tuple[list[ColumnView], list[str]]:
    """Look at every column of a table.

    Args:
        block: The party's columns.
        spec: How they are to be prepared.

    Returns:
        A view of every column that can be used, and a message about every other one.
    """
    views: list[ColumnView] = []
    errors: list[str] = []
    if not isinstance(block.values, pd.DataFrame):
        return views, errors
    everything = np.arange(len(block.ids))
    for name in block.columns:
        column = block.values[name]
        chosen = (name,) if name in spec.categorical_columns else ()
        is_hashed = name in (*spec.text_columns, *spec.hashed_columns)
        own = PrepareSpec(
            categorical=spec.categorical,
            categorical_columns=chosen,
            text_columns=(name,) if name in spec.text_columns else (),
            hashed_columns=(name,) if name in spec.hashed_columns else (),
            hash_width=spec.hash_width,
            missing=spec.missing,
            constant=spec.constant,
        )
        alone = Block(
            owner=block.owner, ids=block.ids, values=block.values[[name]], origin=block.origin
        )
        try:
            kind: str = "category" if chosen else ""
            if is_hashed:
                kind = "text" if name in spec.text_columns else "hashed"
            kind = kind or kind_of(column, block)
            width = int(Preparation.fit(alone, everything, own).shape[0])
        except DataError as error:
            if "no usable column is left" not in str(error):
                errors.append(str(error))
            continue
        views.append(
            ColumnView(
                name=name,
                kind=kind,
                num_distinct=int(column.nunique()),
                num_missing=int(column.isna().sum()),
                width=width,
            )
        )
    return views, errors


def column_doubts(block: Block, rows: Array, truth: Array, kind: TaskKind) -> Iterator[str]:
    """Warn of columns that may mislead.

    Args:
        block: The party's columns.
        rows: The row of every labelled sample that the party has.
        truth: The labels of those samples.
        kind: The kind of label.

    Yields:
        One message per doubt.
    """
    if not isinstance(block.values, pd.DataFrame) or len(rows) < _LEAST_ROWS:
        return
    step = max(1, len(rows) // _MOST_ROWS)
    rows, truth = rows[::step], truth[::step]
    for name in block.columns:
        column = block.values[name].iloc[rows]
        where = f"party '{block.owner}': column '{name}'"
        try:
            how = kind_of(column, block)
        except ColonnadeError:
            how = "category"  # named as categorical by its owner
        told = _telling(column, how, truth, kind)
        if told is not None:
            yield (
                f"{where} alone tells the label ({told}); if it is known only after the label is, "
                f"leave it out of party.{block.owner}.columns"
            )
        if how == "number" and _counts(column):
            yield (
                f"{where} is a different whole number in every row, like an id; leave it out of "
                f"party.{block.owner}.columns, or make it the id"
            )
        if how == "category" and column.nunique() > _MANY_LEVELS:
            yield (
                f"{where} has {column.nunique()} values, each a column of its own; set "
                f'party.{block.owner}.prepare.categorical = "embedding", name it in '
                "prepare.hashed_columns, or group them"
            )


def _counts(column: pd.Series[Any]) -> bool:
    return bool(column.dtype.kind in "iu" and column.is_unique)


def _telling(column: pd.Series[Any], how: ColumnKind, truth: Array, kind: TaskKind) -> str | None:
    """How well a column by itself tells the label, where that is suspiciously well."""
    if how == "category":
        return None if kind == "regression" else _by_level(column, truth)
    try:
        values = as_days(column) if how == "date" else as_numbers(column)
    except (TypeError, ValueError):
        return None
    known = np.isfinite(values)
    values, truth = values[known], truth[known]
    if len(values) < _LEAST_ROWS or values.max() == values.min():
        return None
    if kind == "regression":
        ranks = pd.Series(values).rank(), pd.Series(truth.astype(np.float64)).rank()
        found = abs(float(np.corrcoef(*ranks)[0, 1]))
        return f"rank correlation {found:.4f}" if found >= _ORDERS else None
    classes, codes = np.unique(truth.astype(str), return_inverse=True)
    if len(classes) == 2:
        if min(np.bincount(codes)) < 10:
            return None
        from sklearn.metrics import roc_auc_score

        auc = float(roc_auc_score(codes, values))
        auc = max(auc, 1 - auc)
        return f"AUC {auc:.3f}" if auc >= _GIVES_AWAY else None
    from sklearn.tree import DecisionTreeClassifier

    if not 3 <= len(classes) <= len(truth) / 10:
        return None
    tree = DecisionTreeClassifier(max_leaf_nodes=2 * len(classes), random_state=0)
    found = float(tree.fit(values[:, None], codes).score(values[:, None], codes))
    return f"accuracy {found:.3f}" if found >= _GIVES_AWAY else None


def _by_level(column: pd.Series[Any], truth: Array) -> str | None:
    """The accuracy of each level's commonest class."""
    counts = pd.crosstab(column.astype(str).to_numpy(), truth.astype(str)).to_numpy()
    if len(counts) > counts.sum() / 5 or counts.sum(axis=0).max() > 0.95 * counts.sum():
        return None
    found = counts.max(axis=1).sum() / counts.sum()
    return f"accuracy {found:.3f}" if found >= _GIVES_AWAY else None
