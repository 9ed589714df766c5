"""Drawings of blocks that are missing not at random: by the label, or by a column of a party.

LASER-VFL assumes that blocks are missing completely at random (below its equation 5). These
drawings violate that on purpose. They need all values in one process. Drawings that don't depend
on values are in ``drawn_presence``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from colonnade.core.config import Choice, nearest
from colonnade.core.errors import ConfigError
from colonnade.data.drawn_presence import (
    AsIs,
    BetaMissing,
    Draw,
    Drawing,
    GivenMissing,
    KnownValues,
    Names,
    Numbers,
    UniformMissing,
    check_parties,
    check_probability,
)

__all__ = ["DRAWINGS", "ByColumn", "ByLabel"]


@final
@dataclass(frozen=True, kw_only=True)
class ByLabel(Drawing):
    """A block is missing with a probability that depends on the sample's label.

    ``classes`` gives a probability by class. For numbers, ``above`` holds for labels above the
    median and ``below`` for the others. ``parties`` names the parties whose blocks go missing; by
    default all.
    """

    classes: Mapping[str, float] = field(default_factory=dict)
    above: float = 0.0
    below: float = 0.0
    parties: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, value in self.classes.items():
            check_probability(f"classes.{name}", value)
        check_probability("above", self.above)
        check_probability("below", self.below)
        if self.classes and (self.above or self.below):
            raise ConfigError(
                "classes: give either probabilities by class, or above and below for a number"
            )
        if not self.classes and self.above == self.below:
            raise ConfigError(
                "above: the same as below, so nothing depends on the label; give classes, or "
                'above and below, or use kind = "uniform"'
            )

    def probabilities(self, names: Names, draw: Draw, known: KnownValues | None) -> Numbers:
        labels = _needed(known, "by_label").labels
        if not self.classes:
            return _for(names, self.parties, _halves(_numbers(labels), self.above, self.below))
        texts = np.array([str(item) for item in labels.tolist()])
        present = sorted(set(texts))
        for name in self.classes:
            if name not in present:
                raise ConfigError(
                    f"data.presence: by_label: there is no class '{name}'{nearest(name, present)}"
                )
        by_sample = np.array([self.classes.get(item, 0.0) for item in texts])
        return _for(names, self.parties, by_sample)


@final
@dataclass(frozen=True, kw_only=True)
class ByColumn(Drawing):
    """A block is missing with a probability that depends on a column of another block.

    ``above`` holds for samples whose value is above the column's median, ``below`` for the others.
    Samples that ``party`` does not have lose no block. ``parties`` names the parties whose blocks
    go missing; by default all but ``party``.
    """

    party: str
    column: str
    above: float = 0.0
    below: float = 0.0
    parties: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_probability("above", self.above)
        check_probability("below", self.below)

    def probabilities(self, names: Names, draw: Draw, known: KnownValues | None) -> Numbers:
        values = _needed(known, "by_column")
        check_parties(names, (self.party,))
        others = tuple(name for name in names if name != self.party)
        by_sample = _halves(values.column(self.party, self.column), self.above, self.below)
        return _for(names, others if self.parties is None else self.parties, by_sample)


def _needed(known: KnownValues | None, kind: str) -> KnownValues:
    if known is None:
        raise ConfigError(
            f"data.presence: kind '{kind}' looks at labels and columns, which only a run in one "
            "process has together; use uniform, beta or given"
        )
    return known


def _numbers(labels: np.ndarray[Any, Any]) -> Numbers:
    try:
        return labels.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "data.presence: by_label: above and below need labels that are numbers; give a "
            "probability by class in classes"
        ) from error


def _halves(values: Numbers, above: float, below: float) -> Numbers:
    """``above`` over the median, ``below`` up to it, nothing where there is no value."""
    median = np.nanmedian(values)
    found: Numbers = np.where(np.isnan(values), 0.0, np.where(values > median, above, below))
    return found


def _for(names: tuple[str, ...], parties: tuple[str, ...] | None, by_sample: Numbers) -> Numbers:
    """A probability per sample, for the named parties' columns only."""
    check_parties(names, parties or ())
    concerned = [parties is None or name in parties for name in names]
    return by_sample[:, None] * np.array(concerned, dtype=np.float64)


DRAWINGS = Choice(
    tag="kind",
    options={
        "as_is": AsIs,
        "uniform": UniformMissing,
        "beta": BetaMissing,
        "given": GivenMissing,
        "by_label": ByLabel,
        "by_column": ByColumn,
    },
)
