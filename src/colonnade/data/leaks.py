"""Columns that give the label away: the label itself under another name, in any coding.

A column that tells every class apart, each by one value of its own, is the label recoded (yes and
no as 1 and 0). Of numbers: a column that orders all samples exactly as the label does. Columns that
nearly give it away are a question for ``column_check``, because some are honest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

__all__ = ["is_recoded", "says_the_same"]

Array = np.ndarray[Any, Any]

# A look at so many rows is enough to acquit almost every column.
_GLANCE = 500
# An order of fewer numbers than this may be chance.
_LEAST_ORDERED = 20


def is_recoded(column: pd.Series[Any], truth: Array) -> bool:
    """Say whether a column is the label in some coding.

    Args:
        column: A feature, row by row of the labels.
        truth: The labels.

    Returns:
        Whether values and labels go one to one, or numbers have exactly the label's order.
    """
    for rows in (slice(_GLANCE), slice(None)):
        if not (_tells_apart(column[rows], truth[rows]) or _orders(column[rows], truth[rows])):
            return False
    return True


def says_the_same(column: pd.Series[Any], truth: Array) -> bool:
    """Say whether two columns agree, as numbers (1.0 is 1) or as texts."""
    values = column.to_numpy()
    if values.dtype.kind == "c":
        return False
    try:
        return bool(np.array_equal(values.astype(np.float64), truth.astype(np.float64)))
    except (TypeError, ValueError):
        return bool(np.array_equal(values.astype(str), truth.astype(str)))


def _tells_apart(column: pd.Series[Any], truth: Array) -> bool:
    try:
        levels, _ = pd.factorize(column.to_numpy(), use_na_sentinel=False)
    except TypeError:
        return False  # lists and the like, which are refused elsewhere
    classes, names = pd.factorize(truth)
    num_classes = len(names)
    if not 2 <= num_classes <= len(truth) / 2:
        return False
    pairs = np.unique(levels.astype(np.int64) * num_classes + classes)
    return len(pairs) == num_classes == int(levels.max()) + 1


def _orders(column: pd.Series[Any], truth: Array) -> bool:
    if truth.dtype.kind not in "iuf" or not pd.api.types.is_numeric_dtype(column):
        return False
    if len(np.unique(truth)) < _LEAST_ORDERED:
        return False
    if pd.api.types.is_complex_dtype(column) or column.isna().any():
        return False
    own, labels = column.rank().to_numpy(), pd.Series(truth).rank().to_numpy()
    return bool(np.array_equal(own, labels) or np.array_equal(own, len(own) + 1 - labels))
