"""How the cells of a table lie in memory: column by column in pandas, row by row for an encoder."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

__all__ = ["as_type", "empty_columns"]

Array = np.ndarray[Any, Any]

# Cells between two columns: one line of a processor's cache.
_GAP = 8


def empty_columns(num_rows: int, num_columns: int) -> Array:
    """Room for float64 numbers, column by column.

    There is a gap between columns. Without it the cells of a row may be a power of two apart. They
    then compete for the same few places of a processor's cache, and whoever reads row by row takes
    thrice as long.
    """
    return np.empty((num_columns, num_rows + _GAP))[:, :num_rows].T


def as_type(values: Array, dtype: str, *, order: Literal["C", "K"] = "K") -> Array:
    """Floating-point numbers as another type of them.

    Args:
        values: The numbers.
        dtype: The type.
        order: ``"C"`` puts the cells of a row side by side; ``"K"`` leaves them as they lie.

    Returns:
        The values themselves if nothing is to be done. A number that is too large for the type
        becomes infinite, as in torch, and whoever computes with it tells.
    """
    with np.errstate(over="ignore"):
        return values.astype(dtype, order=order, copy=False)
