"""From a block's columns to numbers for an encoder: fitted on the training part, at the party.

Numeric columns are centred and scaled, skewed ones on a log scale if wanted; categorical ones
become one column per level (one-hot) or codes for an embedding table. Levels that the training part
did not have become all zeros, or code 0. Nothing fitted here leaves the party.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from colonnade.core.errors import ConfigError, DataError
from colonnade.data.blocks import Block, require_columns

__all__ = ["Preparation", "PrepareSpec"]

Array = np.ndarray[Any, Any]

_MISSING_LEVEL = "(missing)"

# From which skewness on a column counts as skewed; an exponential distribution has 2.
_SKEWED = 1.0
# What is added before the logarithm, as a share of a column's range: values closer to the smallest
# than this hardly differ any more.
_LOG_FLOOR = 1e-3


@dataclass(frozen=True, kw_only=True)
class PrepareSpec:
    """How a party turns its columns into numbers.

    Columns of text, and those named in ``categorical_columns``, are categorical. ``shape`` folds
    numeric columns into an image or a sequence, e.g. [1, 28, 14]. ``skewed = "log"`` puts columns
    with a long upper tail (amounts, counts, energies) on a log scale before they are scaled.
    """

    scale: bool = True
    skewed: Literal["keep", "log"] = "keep"
    categorical: Literal["one_hot", "embedding"] = "one_hot"
    categorical_columns: tuple[str, ...] = ()
    missing: Literal["refuse", "mean"] = "refuse"
    constant: Literal["refuse", "drop", "keep"] = "refuse"
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and (not self.shape or min(self.shape) < 1):
            raise ConfigError(f"shape: positive sizes only, got {list(self.shape)}")
        if self.skewed == "log" and not self.scale:
            raise ConfigError('skewed: "log" is a part of scaling; set scale = true')


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
    # Of columns on a log scale, the smallest training value and the range.
    logs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def fit(cls, block: Block, train_rows: Array, spec: PrepareSpec) -> Preparation:
        """Learn means, scales and levels from the training rows; check every row."""
        if isinstance(block.values, np.ndarray) and block.values.ndim > 2:
            return cls._fit_array(block, block.values, train_rows, spec)
        table = _as_table(block)
        where = f"party '{block.owner}'"
        require_columns(table, spec.categorical_columns, where)
        numeric, means, scales = [], [], []
        levels: dict[str, tuple[str, ...]] = {}
        logs: dict[str, tuple[float, ...]] = {}
        # By name, so that the order of columns in a file never matters; an image's are in order.
        for name in table.columns if spec.shape else sorted(table.columns):
            column = table[name]
            if name in spec.categorical_columns or not _is_numeric(column):
                texts = _levels_of(column, spec, block)
                if not _is_usable(len(np.unique(texts)), name, spec, where):
                    continue
                levels[name] = tuple(sorted(set(texts[train_rows])))
                continue
            values = _numbers_of(column, spec, block)
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
            # A column that varies, but not within the training part, is centred only.
            # Compared by its values: rounding leaves equal ones a spread of 1e-16, not of 0.
            varies = train.size and train.max() > train.min()
            scales.append(float(train.std()) or 1.0 if varies else 1.0)
        if not numeric and not levels:
            raise DataError(f"{where}: no usable column is left; give it at least one that varies")
        if spec.shape is not None and (levels or int(np.prod(spec.shape)) != len(numeric)):
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
    def cardinalities(self) -> tuple[int, ...]:
        """Codes per categorical column for an embedding table; code 0 stands for the unknown."""
        if self.spec.categorical != "embedding":
            return ()
        return tuple(len(items) + 1 for items in self.levels.values())

    @property
    def num_numeric(self) -> int:
        """How many of the resulting columns are plain numbers."""
        one_hot = self.spec.categorical == "one_hot"
        return len(self.numeric) + (sum(map(len, self.levels.values())) if one_hot else 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one prepared sample."""
        if self.array_shape is not None:
            return self.array_shape
        if self.spec.shape is not None:
            return self.spec.shape
        return (self.num_numeric + len(self.cardinalities),)

    def apply(self, block: Block) -> Array:
        """The block's rows as float64 numbers, one sample per row."""
        where = f"party '{block.owner}'"
        if self.array_shape is not None:
            values = np.asarray(block.values)
            if values.shape[1:] != self.array_shape:
                raise DataError(
                    f"{where}: samples of shape {values.shape[1:]}, expected {self.array_shape}"
                )
            _check_finite_array(values, block)
            scaled: Array = np.asarray(values, dtype=np.float64)
            return (scaled - self.means[0]) / self.scales[0] if self.spec.scale else scaled
        table = _as_table(block)
        require_columns(table, [*self.numeric, *self.levels], where)
        parts = []
        for name, mean, scale in zip(self.numeric, self.means, self.scales, strict=True):
            values = _numbers_of(table[name], self.spec, block)
            if name in self.logs:
                values = _on_log_scale(values, *self.logs[name])
            values = np.where(np.isnan(values), mean, values)
            parts.append(((values - mean) / scale if self.spec.scale else values)[:, None])
        for name, known in self.levels.items():
            texts = _levels_of(table[name], self.spec, block)
            codes = pd.Index(known).get_indexer(pd.Index(texts))
            if self.spec.categorical == "one_hot":
                parts.append((codes[:, None] == np.arange(len(known))).astype(np.float64))
            else:
                parts.append((codes + 1).astype(np.float64)[:, None])
        prepared: Array = np.concatenate(parts, axis=1)
        return prepared.reshape(len(prepared), *self.shape)


def _as_table(block: Block) -> pd.DataFrame:
    if isinstance(block.values, pd.DataFrame):
        table = block.values
        return table.rename(columns={name: str(name) for name in table.columns})
    return pd.DataFrame(block.values).rename(columns=lambda number: f"x{number}")


def _is_numeric(column: pd.Series[Any]) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column)


def _is_skewed(values: Array) -> bool:
    """Whether a column has a long upper tail."""
    if not values.size or values.max() == values.min():
        return False
    # In units of the range first: powers of huge or tiny numbers leave float64.
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


def _numbers_of(column: pd.Series[Any], spec: PrepareSpec, block: Block) -> Array:
    """A column as float64; missing values stay NaN where the spec fills them."""
    try:
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"party '{block.owner}': column '{column.name}' was numeric in training and now holds "
            "text; give numbers"
        ) from error
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        raise DataError(
            f"party '{block.owner}': column '{column.name}' has {infinite.size} infinite values "
            f"(first at row {block.first_row(infinite)}); replace them"
        )
    missing = np.flatnonzero(np.isnan(values))
    if missing.size and spec.missing == "refuse":
        raise _missing_error(str(column.name), missing, block)
    return values


def _levels_of(column: pd.Series[Any], spec: PrepareSpec, block: Block) -> Array:
    """A categorical column as text."""
    missing = np.flatnonzero(column.isna().to_numpy())
    if missing.size and spec.missing == "refuse":
        raise _missing_error(str(column.name), missing, block)
    if pd.api.types.is_float_dtype(column):
        # A missing cell turns whole numbers into floats: 1.0 is the level 1.
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        texts = np.array([str(int(x)) if x % 1 == 0 else str(x) for x in values], dtype=object)
    else:
        texts = column.astype(str).to_numpy(dtype=object, copy=True)
    texts[missing] = _MISSING_LEVEL
    return texts


def _missing_error(name: str, missing: Array, block: Block) -> DataError:
    return DataError(
        f"party '{block.owner}': column '{name}' has {missing.size} missing values (first at row "
        f'{block.first_row(missing)}); fill them, or set prepare.missing = "mean"'
    )


def _check_finite_array(values: Array, block: Block) -> None:
    bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    if bad.size:
        raise DataError(
            f"party '{block.owner}': {bad.size} samples have infinite or missing values (first at "
            f"row {block.first_row(bad)}); replace them"
        )
