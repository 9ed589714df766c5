"""Presence drawn at random: blocks of samples that an experiment leaves out.

A drawing only removes blocks, per sample and from the run's seed; a block that a party does not
have stays absent. Drawings that depend on values are in ``dependent_presence``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.core.seeds import derive_seed

__all__ = [
    "AsIs",
    "BetaMissing",
    "Draw",
    "Drawing",
    "GivenMissing",
    "KnownValues",
    "Names",
    "Numbers",
    "PresenceSpec",
    "UniformMissing",
    "check_parties",
    "check_probability",
    "draw_presence",
]

Table = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]
Names = tuple[str, ...]
Draw = np.random.Generator


class KnownValues(Protocol):
    """Labels and columns of every sample, for drawings that depend on them.

    There are such values only where all blocks are in one process.
    """

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        """The label of every sample."""

    def column(self, party: str, column: str) -> Numbers:
        """A party's column for every sample; NaN where the party does not have the sample."""


class Drawing(ABC):
    """A way in which blocks go missing, independently for each sample and block."""

    @abstractmethod
    def probabilities(self, names: Names, draw: Draw, known: KnownValues | None) -> Numbers:
        """The probability that a block is missing: one per party, or a row of these per sample.

        A drawing that depends on values needs ``known`` and gives a row per sample.
        """


@final
@dataclass(frozen=True, kw_only=True)
class AsIs(Drawing):
    """No block is removed."""

    def probabilities(self, names: Names, draw: Draw, known: KnownValues | None) -> Numbers:
        return np.zeros(len(names))


@final
@dataclass(frozen=True, kw_only=True)
class UniformMissing(Drawing):
    """Every block with the same probability (LASER-VFL, Table 1)."""

    missing: float

    def __post_init__(self) -> None:
        check_probability("missing", self.missing)

    def probabilities(self, names: Names, draw: Draw, known: KnownValues | None) -> Numbers:
        return np.full(len(names), self.missing)


@final
@dataclass(frozen=True, kw_only=True)
class BetaMissing(Drawing):
    """A probability per block, drawn from a Beta distribution (LASER-VFL, Table 3)."""

    a: float = 2.0
    b: float = 2.0

    def __post_init__(self) -> None:
        for name in ("a", "b"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")

    def probabilities(self, names: Names, draw: Draw, known: KnownValues | None) -> Numbers:
        return draw.beta(self.a, self.b, len(names))


@final
@dataclass(frozen=True, kw_only=True)
class GivenMissing(Drawing):
    """A probability per party by its name; parties not named miss nothing."""

    party: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.party.items():
            check_probability(f"party.{name}", value)

    def probabilities(self, names: Names, draw: Draw, known: KnownValues | None) -> Numbers:
        check_parties(names, self.party)
        return np.array([self.party.get(name, 0.0) for name in names])


@dataclass(frozen=True, kw_only=True)
class PresenceSpec:
    """The drawings of one run: ``train`` for training, ``inference`` for validation and test."""

    train: Drawing = field(default_factory=AsIs)
    inference: Drawing = field(default_factory=AsIs)


def draw_presence(
    spec: PresenceSpec,
    names: tuple[str, ...],
    part: str,
    samples: int | np.ndarray[Any, Any],
    *,
    seed: int,
    known: KnownValues | None = None,
) -> Table:
    """Draw which blocks stay: one row per sample of a part, one column per party.

    ``samples`` are the sample numbers of the part, or how many there are.
    """
    drawing = spec.train if part == "train" else spec.inference
    # Every part with the same drawing gets the same probabilities, so they have one seed.
    shared = np.random.default_rng(derive_seed(seed, "presence"))
    missing = drawing.probabilities(names, shared, known)
    if missing.ndim == 2:
        missing = missing[samples]
    num_samples = samples if isinstance(samples, int) else len(samples)
    draw = np.random.default_rng(derive_seed(seed, "presence", part))
    stays: Table = draw.random((num_samples, len(names))) >= missing
    return stays


def check_parties(names: tuple[str, ...], given: Iterable[str]) -> None:
    """Raise ConfigError for a party that is not there."""
    for name in given:
        if name not in names:
            raise ConfigError(
                f"data.presence: there is no party '{name}'{nearest(name, list(names))}"
            )


def check_probability(name: str, value: float) -> None:
    """Raise ConfigError unless the value is a probability."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name}: a probability from 0 to 1, got {value}")
