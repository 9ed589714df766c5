"""Preparation of a block's columns as numbers for an encoder, fitted on the training part.

Numeric columns are centred and scaled, skewed ones on a log scale if wanted. Dates are days since
1970. Categorical columns
become one column per level (one-hot) or codes for an embedding table. A level that the training
part did not have becomes all zeros, or code 0. Nothing fitted here leaves the party.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from colonnade.core.errors import DataError
from colonnade.data.blocks import Block, require_columns
from colonnade.data.cell_order import as_type, empty_columns
from colonnade.data.column_kinds import as_days, as_numbers, kind_of
from colonnade.data.hashed_columns import hashed_categories, hashed_words
from colonnade.data.prepare_spec import PrepareSpec

__all__ = ["Preparation", "PrepareSpec"]

Array = np.ndarray[Any, Any]

_MISSING_LEVEL = "(missing)"

# A column above this skewness counts as skewed; an exponential distribution has 2.
_SKEWED = 1.0
# Added before the logarithm, as a share of a column's range: values closer to the smallest than
# this hardly differ any more.
_LOG_FLOOR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A fitted preparation: applies to any later rows of the same columns."""

    spec: PrepareSpec
    numeric: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    levels: Mapping[str, tuple[str, ...]]
    # One sample's shape for a block that is an array; its mean and scale are single numbers.
    array_shape: tuple[int, ...] | None = None
    # The smallest training value and the range of each column on a log scale.
    logs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # Which of the numeric columns are dates, as days.
    dates: tuple[str, ...] = ()
    # The smallest and the largest prepared training value of every numeric column. A run of an
    # earlier version has none, and is the same preparation without.
    ranges: tuple[tuple[float, ...], ...] = field(default=(), compare=False)

    @classmethod
    def fit(cls, block: Block, train_rows: Array, spec: PrepareSpec) -> Preparation:
        """Learn means, scales and levels from the training rows; check every row."""
        if isinstance(block.values, np.ndarray) and block.values.ndim > 2:
            return cls._fit_array(block, block.values, train_rows, spec)
        table = _as_table(block)
        where = f"party '{block.owner}'"
        hashed = tuple(sorted((*spec.text_columns, *spec.hashed_columns)))
        require_columns(table, (*spec.categorical_columns, *hashed), where)
        numeric, means, scales, ranges = [], [], [], []
        levels: dict[str, tuple[str, ...]] = {}
        logs: dict[str, tuple[float, ...]] = {}
        dates = []
        # Sorted by name, so that the order in a file never matters; pixels of an image keep theirs.
        for name in table.columns if spec.shape else sorted(table.columns):
            column = table[name]
            if name in hashed:
                _hashed(column, spec, block, is_new=False)  # so that missing values are told
                continue
            is_named = name in spec.categorical_columns
            kind = "category" if is_named else kind_of(column, block)
            if kind == "category":
                texts = _levels_of(column, spec, block)
                if not _is_usable(len(np.unique(texts)), name, spec, where):
                    continue
                levels[name] = tuple(sorted(set(texts[train_rows])))
                continue
            if kind == "date":
                dates.append(name)
            values = _numbers_of(column, spec, block, is_date=kind == "date")
            spread = np.nanmax(values) - np.nanmin(values) if np.isfinite(values).any() else 0.0
            if not _is_usable(2 if spread > 0 else 1, name, spec, where):
                continue
            train = values[train_rows]
            train = train[np.isfinite(train)]
            if spec.skewed == "log" and _is_skewed(train):
                logs[name] = (float(train.min()), float(np.ptp(train)))
                train = _on_log_scale(train, *logs[name])
            numeric.append(name)
            means.append(float(train.mean()) if train.size else 0.0)
            # A column that is constant within the training part is centred only. Its values are
            # compared, because rounding can give equal values a deviation of 1e-16.
            varies = train.size and train.max() > train.min()
            scales.append(float(train.std()) or 1.0 if varies else 1.0)
            ends = np.array([train.min(), train.max()]) if train.size else np.zeros(2)
            ranges.append(tuple((ends - means[-1]) / scales[-1] if spec.scale else ends))
        if not numeric and not levels and not hashed:
            raise DataError(f"{where}: no usable column is left; give it at least one that varies")
        others = bool(levels or hashed)
        if spec.shape is not None and (others or int(np.prod(spec.shape)) != len(numeric)):
            raise DataError(
                f"{where}: prepare.shape {list(spec.shape)} needs {int(np.prod(spec.shape))} "
                f"numeric columns, the block has {len(numeric)} numeric and {len(levels)} "
                "categorical ones"
            )
        return cls(
            spec=spec,
            numeric=tuple(numeric),
            means=tuple(means),
            scales=tuple(scales),
            levels=levels,
            logs=logs,
            dates=tuple(dates),
            ranges=tuple(tuple(map(float, ends)) for ends in ranges),
        )

    @classmethod
    def _fit_array(
        cls, block: Block, values: Array, train_rows: Array, spec: PrepareSpec
    ) -> Preparation:
        _check_finite_array(values, block)
        if spec.skewed == "log":
            raise DataError(
                f"party '{block.owner}': prepare.skewed = \"log\" is for tables, and this block is "
                'an array; leave it at "keep"'
            )
        train = values[train_rows]
        return cls(
            spec=spec,
            numeric=(),
            means=(float(train.mean()),),
            scales=(float(train.std()) or 1.0,),
            levels={},
            array_shape=tuple(values.shape[1:]),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns that are used."""
        return (*self.numeric, *self.levels, *self.hashed)

    @cached_property
    def hashed(self) -> tuple[str, ...]:
        """The names of the columns that are hashed, in order."""
        return tuple(sorted((*self.spec.text_columns, *self.spec.hashed_columns)))

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """The number of codes of each categorical column; code 0 is for unknown levels."""
        if self.spec.categorical != "embedding":
            return ()
        return tuple(len(items) + 1 for items in self.levels.values())

    @property
    def num_numeric(self) -> int:
        """The number of prepared columns that are numbers and not codes."""
        one_hot = self.spec.categorical == "one_hot"
        plain = len(self.numeric) + len(self.hashed) * self.spec.hash_width
        return plain + (sum(map(len, self.levels.values())) if one_hot else 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one prepared sample."""
        if self.array_shape is not None:
            return self.array_shape
        if self.spec.shape is not None:
            return self.spec.shape
        return (self.num_numeric + len(self.cardinalities),)

    @cached_property
    def _needed(self) -> frozenset[str]:
        return frozenset(self.columns)

    @cached_property
    def _means_and_scales(self) -> tuple[Array, Array]:
        return np.array(self.means), np.array(self.scales)

    def apply(self, block: Block, dtype: str = "float64") -> Array:
        """The block's rows as numbers, one sample per row; computed as float64 in any case."""
        where = f"party '{block.owner}'"
        if self.array_shape is not None:
            values = np.asarray(block.values)
            if values.shape[1:] != self.array_shape:
                raise DataError(
                    f"{where}: samples of shape {values.shape[1:]}, expected {self.array_shape}"
                )
            _check_finite_array(values, block)
            scaled: Array = np.asarray(values, dtype=np.float64)
            scaled = (scaled - self.means[0]) / self.scales[0] if self.spec.scale else scaled
            return as_type(scaled, dtype)
        table = _as_table(block)
        known = block.columns or tuple(table.columns)
        if not self._needed <= set(known):
            require_columns(table, list(self.columns), where)
        parts = self._numbers_at_once(table, known) or self._numbers_by_column(table, block)
        parts += [_hashed(table[name], self.spec, block, is_new=True) for name in self.hashed]
        for name, known in self.levels.items():
            texts = _levels_of(table[name], self.spec, block, is_new=True)
            codes = pd.Index(known).get_indexer(pd.Index(texts))
            if self.spec.categorical == "one_hot":
                parts.append((codes[:, None] == np.arange(len(known))).astype(np.float64))
            else:
                parts.append((codes + 1).astype(np.float64)[:, None])
        prepared: Array = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return as_type(prepared, dtype, order="C").reshape(len(prepared), *self.shape)

    def far_outside(self, prepared: Array) -> Array:
        """Which prepared rows have a number far outside its training range.

        Far is beyond the range by more than the range is wide, and than one deviation.

        Args:
            prepared: What ``apply`` gave.

        Returns:
            A truth value per row; all false where training ranges are not known.
        """
        if not self.ranges:
            return np.zeros(len(prepared), dtype=np.bool_)
        numbers = prepared.reshape(len(prepared), -1)[:, : len(self.numeric)]
        low, high = np.array(self.ranges).T
        room = np.maximum(high - low, 1.0 if self.spec.scale else np.array(self.scales))
        found: Array = ((numbers < low - room) | (numbers > high + room)).any(axis=1)
        return found

    def _numbers_by_column(self, table: pd.DataFrame, block: Block) -> list[Array]:
        """The numeric columns one by one: any type of column, and messages that name it."""
        parts = []
        for name, mean, scale in zip(self.numeric, self.means, self.scales, strict=True):
            is_date = name in self.dates
            values = _numbers_of(table[name], self.spec, block, is_date=is_date, is_new=True)
            if name in self.logs:
                values = _on_log_scale(values, *self.logs[name])
            values = np.where(np.isnan(values), mean, values)
            parts.append(((values - mean) / scale if self.spec.scale else values)[:, None])
        return parts

    def _numbers_at_once(self, table: pd.DataFrame, names: tuple[str, ...]) -> list[Array]:
        """The same bits for all numeric columns at once; nothing where one needs a closer look.

        A column by itself costs pandas more than its numbers cost the network.
        """
        if not self.numeric or self.dates:
            return []
        # Without the text among them: it would make objects of all numbers.
        if self.levels or self.hashed:
            table, names = table[list(self.numeric)], self.numeric
        cells = table.to_numpy()
        if cells.dtype.kind not in "fiu" or cells.dtype.itemsize > 8:
            return []
        if names != self.numeric:
            place_of = {name: place for place, name in enumerate(names)}
            cells = cells[:, [place_of[name] for name in self.numeric]]
        is_finite = bool(np.isfinite(cells).all())
        if not is_finite and (self.spec.missing == "refuse" or np.isinf(cells).any()):
            return []
        means, scales = self._means_and_scales
        if self.logs or not is_finite:
            cells = np.array(cells, dtype=np.float64, order="F")
            for place, name in enumerate(self.numeric):
                if name in self.logs:
                    cells[:, place] = _on_log_scale(cells[:, place], *self.logs[name])
            cells = np.where(np.isnan(cells), means, cells)
        values = empty_columns(*cells.shape)
        if self.spec.scale:
            np.subtract(cells, means, out=values)
            values /= scales
        else:
            values[:] = cells
        return [values]


def _as_table(block: Block) -> pd.DataFrame:
    if isinstance(block.values, pd.DataFrame):
        table = block.values
        if isinstance(table.columns.dtype, pd.StringDtype):
            return table
        return table.set_axis(list(block.columns), axis=1)
    return pd.DataFrame(block.values).rename(columns=lambda number: f"x{number}")


def _is_skewed(values: Array) -> bool:
    """Say whether a column has a long upper tail."""
    if not values.size or values.max() == values.min():
        return False
    # Scaled to the range first, because powers of huge or tiny numbers overflow float64.
    strays = (values - values.min()) / np.ptp(values)
    strays -= strays.mean()
    return bool((strays**3).mean() > _SKEWED * (strays**2).mean() ** 1.5)


def _on_log_scale(values: Array, low: float, spread: float) -> Array:
    """The logarithm of the distance from the smallest training value; none is below 0."""
    found: Array = np.log(np.maximum((values - low) / spread, 0.0) + _LOG_FLOOR)
    return found


def _is_usable(num_distinct: int, name: str, spec: PrepareSpec, where: str) -> bool:
    if num_distinct > 1 or spec.constant == "keep":
        return True
    if spec.constant == "drop":
        return False
    raise DataError(
        f"{where}: column '{name}' is constant, so it says nothing; leave it out, or set "
        'prepare.constant = "drop"'
    )


def _numbers_of(
    column: pd.Series[Any],
    spec: PrepareSpec,
    block: Block,
    *,
    is_date: bool,
    is_new: bool = False,
) -> Array:
    """A column as float64; missing values stay NaN where the spec fills them."""
    try:
        values = as_days(column) if is_date else as_numbers(column)
    except (TypeError, ValueError) as error:
        was, now = ("dates", "something else") if is_date else ("numeric", "text or dates")
        raise DataError(
            f"party '{block.owner}': column '{column.name}' was {was} in training and now holds "
            f"{now}; give {'dates' if is_date else 'numbers'}"
        ) from error
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        raise DataError(
            f"party '{block.owner}': column '{column.name}' has {infinite.size} infinite values "
            f"(first at row {block.first_row(infinite)}); replace them"
        )
    missing = np.flatnonzero(np.isnan(values))
    if missing.size and spec.missing == "refuse":
        raise _missing_error(str(column.name), missing, block, is_new=is_new)
    return values


def _levels_of(
    column: pd.Series[Any], spec: PrepareSpec, block: Block, *, is_new: bool = False
) -> Array:
    """A categorical column as text."""
    missing = np.flatnonzero(column.isna().to_numpy())
    if missing.size and spec.missing == "refuse":
        raise _missing_error(str(column.name), missing, block, is_new=is_new)
    if pd.api.types.is_float_dtype(column):
        # A missing cell turns whole numbers into floats: 1.0 is the level 1.
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        texts = np.array([str(int(x)) if x % 1 == 0 else str(x) for x in values], dtype=object)
    else:
        texts = column.astype(str).to_numpy(dtype=object, copy=True)
    texts[missing] = _MISSING_LEVEL
    return texts


def _hashed(column: pd.Series[Any], spec: PrepareSpec, block: Block, *, is_new: bool) -> Array:
    """Free text or a category, as ``hash_width`` columns."""
    if column.name in spec.hashed_columns:
        return hashed_categories(_levels_of(column, spec, block, is_new=is_new), spec.hash_width)
    missing = np.flatnonzero(column.isna().to_numpy())
    if missing.size and spec.missing == "refuse":
        raise _missing_error(str(column.name), missing, block, is_new=is_new)
    return hashed_words(column, spec.hash_width)


def _missing_error(name: str, missing: Array, block: Block, *, is_new: bool) -> DataError:
    # Training looks at every row before it prepares any: later only new rows lack something.
    instead = "train again with" if is_new else "set"
    return DataError(
        f"party '{block.owner}': column '{name}' has {missing.size} missing values (first at row "
        f"{block.first_row(missing)}){', which training had not' if is_new else ''}; fill them, or "
        f'{instead} party.{block.owner}.prepare.missing = "mean" (for every party: '
        "defaults.prepare.missing)"
    )


def _check_finite_array(values: Array, block: Block) -> None:
    bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    if bad.size:
        raise DataError(
            f"party '{block.owner}': {bad.size} samples have infinite or missing values (first at "
            f"row {block.first_row(bad)}); replace them"
        )
