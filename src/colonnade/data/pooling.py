"""All columns in one place: what the centralized baseline trains on, and no federation has.

A pooled block is several parties' blocks, row by row of the same samples; its preparation is each
party's own, side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.core.errors import ConfigError
from colonnade.data.blocks import Block
from colonnade.data.prepare import Preparation, PrepareSpec

__all__ = ["PooledBlock", "PooledPreparation"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class PooledBlock:
    """The blocks of several owners, in the order of their names; row i of each is one sample."""

    blocks: Mapping[str, Block]

    @classmethod
    def of(cls, blocks: Mapping[str, Block], rows: Mapping[str, Array]) -> PooledBlock:
        """Pool the samples whose rows are given by owner."""
        return cls(blocks={name: blocks[name].take(rows[name]) for name in sorted(blocks)})


@dataclass(frozen=True, kw_only=True)
class PooledPreparation:
    """Every owner's preparation, by owner."""

    parts: Mapping[str, Preparation]

    @classmethod
    def fit(
        cls, pooled: PooledBlock, train_rows: Array, specs: Mapping[str, PrepareSpec]
    ) -> PooledPreparation:
        """Learn each owner's means, scales and levels from the training rows."""
        parts = {
            name: Preparation.fit(block, train_rows, specs[name])
            for name, block in pooled.blocks.items()
        }
        if any(item.cardinalities for item in parts.values()):
            raise ConfigError(
                "method.name: 'centralized' can't pool embedded categories; set "
                'prepare.categorical = "one_hot"'
            )
        return cls(parts=parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one prepared sample: all columns in a row."""
        return (sum(int(np.prod(item.shape)) for item in self.parts.values()),)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """None: categories are one-hot."""
        return ()

    @property
    def num_numeric(self) -> int:
        """How many of the resulting columns are plain numbers: all."""
        return self.shape[0]

    def apply(self, pooled: PooledBlock, dtype: str = "float64") -> Array:
        """The pooled rows as numbers, one sample per row; computed as float64 in any case."""
        own = [item.apply(pooled.blocks[name], dtype) for name, item in self.parts.items()]
        return np.concatenate([item.reshape(len(item), -1) for item in own], axis=1)
