"""What a column is: numbers, dates or categories; and what can't be any of them.

A column of objects may hold numbers (decimals from a data base), dates or texts. Text that is
numbers ("12,3", "12.3 EUR") or differs in every row would silently become hundreds of one-hot
columns: it is refused with the remedy, unless the owner names the column as categorical. Messages
give row numbers and never a value.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from colonnade.core.errors import DataError
from colonnade.data.blocks import Block

__all__ = ["ColumnKind", "as_days", "as_numbers", "kind_of", "text_problem"]

ColumnKind: TypeAlias = Literal["number", "date", "category"]

# As pandas calls what is in a column of objects.
_NUMBERS = frozenset({"integer", "floating", "mixed-integer-float", "decimal", "boolean"})
_DATES = frozenset({"datetime64", "datetime", "date", "period"})
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?")
_OTHER_DATE = re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2,4}|\d{4}([./])\d{1,2}\2\d{1,2}")
_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}([.,' ]\d{3})+)([.,]\d+)?([eE][+-]?\d+)?")
_AFFIXED = re.compile(r"(?P<before>[€$£¥]?)\s?(?P<number>[+-]?[\d.,']*\d)\s?(?P<after>\D{0,6})")
# More levels than this are no codes of a few kinds.
_FEW = 20
# A text that is different in nine rows of ten names its row.
_MOSTLY = 0.9
_LEAST_ROWS = 50


def kind_of(column: pd.Series[Any], block: Block) -> ColumnKind:
    """Decide what a column is.

    Args:
        column: The column, with all rows of the block.
        block: Whose it is, for messages.

    Returns:
        How it is to be prepared.

    Raises:
        DataError: It holds values that are neither numbers, dates nor categories, or texts that
            are numbers.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        return "category"
    if pd.api.types.is_complex_dtype(column):
        raise _refused(column, block, "complex numbers", "give real and imaginary part apart")
    if pd.api.types.is_numeric_dtype(column):
        return "number"
    if pd.api.types.is_datetime64_any_dtype(column):
        return "date"
    found = pd.api.types.infer_dtype(column, skipna=True)
    if found in _NUMBERS:
        return "number"
    if found in _DATES:
        return "date"
    if found == "string":
        return _kind_of_text(column, block)
    if found == "empty":
        return "category"
    if found == "mixed-integer" or (found == "mixed" and _has_texts(column)):
        remedy = f"write all alike, or name it in {_setting(block)}.categorical_columns"
        raise _refused(column, block, "texts and numbers", remedy)
    remedy = "take out of it what a model is to learn from, as columns of their own"
    raise _refused(column, block, _held(column), remedy)


def _kind_of_text(column: pd.Series[Any], block: Block) -> ColumnKind:
    problem = text_problem(column, block)
    if problem is None:
        return "date" if _are(_ISO, column) else "category"
    what, remedy = problem
    as_is = f"or, if it is to be categories, name it in {_setting(block)}.categorical_columns"
    raise DataError(f"party '{block.owner}': column '{column.name}' {what}; {remedy}, {as_is}")


def text_problem(column: pd.Series[Any], block: Block) -> tuple[str, str] | None:
    """Say what is wrong with a column of texts, and the remedy; none if nothing is."""
    texts = column.dropna().astype(str).str.strip()
    levels = texts.unique()
    if len(levels) < 3:
        return None
    # Most columns are plain texts: the first few tell.
    glance = levels[:50]
    if _share(_OTHER_DATE, glance) == 1 and _share(_OTHER_DATE, levels) == 1:
        return "holds dates as text", 'say how they are written: csv.dates, e.g. "%d.%m.%Y"'
    like_numbers = [item for item in levels if _NUMBER.fullmatch(item)]
    has_fraction = any(re.search(r"[.,]\d", item) for item in like_numbers)
    is_code = any(re.match(r"[+-]?0\d", item) for item in like_numbers)
    if len(like_numbers) == len(levels):
        if is_code or not (has_fraction or len(levels) > _FEW):
            return None
        commas = any("," in item for item in levels)
        how = 'set csv.decimal = ","' if commas else "turn it into numbers"
        if commas and all(re.fullmatch(r"[^,]*,\d{3}", item) for item in levels if "," in item):
            how = 'set csv.thousands = "," (1,234 is 1234) or csv.decimal = "," (it is 1.234)'
        return f"holds numbers as text{' with commas' if commas else ''}", how
    if len(like_numbers) >= 0.8 * len(levels) and len(levels) > _FEW:
        written = column.astype(str).str.strip()
        odd = np.flatnonzero((column.notna() & ~written.isin(like_numbers)).to_numpy())
        return (
            f"holds numbers but for {len(odd)} values (first at row {block.first_row(odd)})",
            "name what stands for a missing value in csv.missing, or correct them",
        )
    is_number = _has_fraction(levels) or len(levels) > _FEW
    if is_number and _have_a_unit(glance) and _have_a_unit(levels):
        return "holds numbers with a unit", "take the unit out of the values"
    if not _are(_ISO, column) and len(texts) >= _LEAST_ROWS and len(levels) > _MOSTLY * len(texts):
        return (
            f"has a different text in {len(levels)} of {len(texts)} rows",
            "leave it out: from names and ids nothing is learned; free text is named in "
            f"{_setting(block)}.text_columns",
        )
    return None


def _has_fraction(levels: Any) -> bool:
    """Whether some number among texts has a fraction."""
    return any(re.search(r"\d[.,]\d", item) for item in levels)


def _have_a_unit(levels: Any) -> bool:
    """Whether all texts are numbers with the same thing before or behind them."""
    units = set()
    for item in levels:
        match = _AFFIXED.fullmatch(item)
        if not match or not _NUMBER.fullmatch(match["number"]):
            return False
        units.add((match["before"], match["after"].strip()))
    return len(units) == 1 and units != {("", "")}


def as_numbers(column: pd.Series[Any]) -> np.ndarray[Any, Any]:
    """A column of numbers as float64; missing ones are NaN. TypeError or ValueError if not."""
    if pd.api.types.is_datetime64_any_dtype(column) or column.dtype.kind == "m":
        raise TypeError("dates")
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def as_days(column: pd.Series[Any]) -> np.ndarray[Any, Any]:
    """A column of dates as days since 1970 in UTC; missing ones are NaN. ValueError if not."""
    if isinstance(column.dtype, pd.PeriodDtype):
        column = column.dt.to_timestamp()
    elif pd.api.types.infer_dtype(column, skipna=True) == "period":
        column = pd.Series([item if pd.isna(item) else item.to_timestamp() for item in column])
    elif pd.api.types.is_numeric_dtype(column):
        raise ValueError("numbers")
    is_text = pd.api.types.infer_dtype(column, skipna=True) == "string"
    dates = pd.to_datetime(column, utc=True, format="ISO8601" if is_text else None)
    since = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    return since.to_numpy(dtype=np.float64, na_value=np.nan)


def _are(pattern: re.Pattern[str], column: pd.Series[Any]) -> bool:
    levels = column.dropna().astype(str).unique()
    return len(levels) > 0 and _share(pattern, levels[:50]) == 1 and _share(pattern, levels) == 1


def _share(pattern: re.Pattern[str], levels: Any) -> float:
    return sum(bool(pattern.fullmatch(item)) for item in levels) / len(levels)


def _has_texts(column: pd.Series[Any]) -> bool:
    values = column.dropna()
    return bool(values.map(lambda item: isinstance(item, str | int | float)).all())


def _held(column: pd.Series[Any]) -> str:
    kinds = sorted({type(item).__name__ for item in column.dropna().head(1000)})
    return f"values of type {' and '.join(kinds)}"


def _setting(block: Block) -> str:
    return f"party.{block.owner}.prepare"


def _refused(column: pd.Series[Any], block: Block, what: str, remedy: str) -> DataError:
    return DataError(
        f"party '{block.owner}': column '{column.name}' holds {what}, expected numbers, dates or "
        f"categories; {remedy}"
    )
