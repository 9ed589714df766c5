"""Sample ids as text: made of any type, without repeats, and only when somebody reads them.

Ids are compared as text, so ``7`` in one party's Parquet file and ``"7"`` in another's CSV are the
same sample. Where two tables have the same whole numbers as ids, no text is needed to tell: equal
numbers are equal texts, and equal texts are equal numbers. Messages about ids give counts and row
numbers, never an id.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias, overload

import numpy as np
import pandas as pd

from colonnade.core.errors import DataError

__all__ = ["HeldIds", "IdsField", "NumberIds", "as_ids", "check_unique", "held_ids"]

Array = np.ndarray[Any, Any]


class NumberIds:
    """Whole numbers as ids; their text is made when it is first asked for."""

    def __init__(self, numbers: Array) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def texts(self) -> Array:
        """The ids as text, in the same order."""
        return np.array(list(map(str, self.numbers.tolist())), dtype=object)

    def are_those_of(self, other: NumberIds) -> bool:
        """Whether both have the same ids in the same order; False may also be another type."""
        # Numbers of two types are compared as floats, which don't tell large ones apart.
        is_one_type = self.numbers.dtype == other.numbers.dtype
        return is_one_type and bool(np.array_equal(self.numbers, other.numbers))


HeldIds: TypeAlias = Array | NumberIds


class IdsField:
    """A dataclass's field of sample ids: read as text, whatever it holds."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> IdsField: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Array: ...
    def __get__(self, instance: object | None, owner: type) -> Array | IdsField:
        if instance is None:
            return self
        held: HeldIds = vars(instance)[self._name]
        return held.texts if isinstance(held, NumberIds) else held

    def __set__(self, instance: object, ids: HeldIds | IdsField) -> None:
        if isinstance(ids, IdsField):  # which a dataclass takes for the default
            raise TypeError(f"{type(instance).__name__} needs '{self._name}'")
        vars(instance)[self._name] = ids


def held_ids(values: Any, where: str) -> HeldIds:
    """Sample ids of any type, to be read as text.

    Args:
        values: The ids: a column, an index, a list or an array.
        where: The place that a message names.

    Returns:
        Whole numbers without gaps as they are, which is done at once; all others as text.

    Raises:
        DataError: An id is missing, infinite or a fractional number.
    """
    kind = values.dtype if isinstance(values, pd.Series | pd.Index) else None
    if isinstance(kind, np.dtype) and kind.kind in "iu":
        return NumberIds(values.to_numpy(copy=True))  # the caller's own may change later
    return as_ids(values, where)


def as_ids(values: Any, where: str) -> Array:
    """Turn sample ids of any type into text.

    Args:
        values: The ids: a column, an index, a list or an array.
        where: The place that a message names.

    Returns:
        The ids as text, in the same order.

    Raises:
        DataError: An id is missing, infinite or a fractional number.
    """
    # Text and whole numbers without gaps need no closer look, request by request.
    kind = values.dtype if isinstance(values, pd.Series | pd.Index) else None
    if isinstance(kind, pd.StringDtype) and not values.hasnans:
        found: Array = values.to_numpy(dtype=object)
        return found
    if isinstance(kind, np.dtype) and kind.kind in "iu":
        return NumberIds(values.to_numpy()).texts
    if isinstance(values, pd.MultiIndex):
        raise DataError(f"{where}: ids of {values.nlevels} levels; give one id per row")
    try:
        column = pd.Series(values).reset_index(drop=True)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: ids must be a list, one per row ({error})") from error
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


def check_unique(ids: HeldIds, where: str) -> None:
    """Refuse duplicate ids, saying how many and where, never which."""
    own: Array = ids.numbers if isinstance(ids, NumberIds) else ids
    # Ascending numbers, as in most tables, have no repeats.
    if own.dtype.kind in "iu" and bool((own[1:] > own[:-1]).all()):
        return
    if len(set(own.tolist())) == len(own):
        return
    # As objects: turning a million ids into pandas' own strings takes longer than the look-up.
    repeated = pd.Series(own, dtype=object).duplicated().to_numpy()
    if repeated.any():
        rows = np.flatnonzero(repeated)
        raise DataError(
            f"{where}: {len(rows)} duplicate ids (first repeat at row {rows[0]}); "
            "keep one row per id"
        )
