"""Presence drawn at random: which blocks of which samples go missing, to see what that does.

What ids say is never added to: a block that a party does not have stays absent. A drawing only
takes blocks away, per sample, from the run's seed. Drawings that depend on values are in
``data/dependent.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError
from colonnade.core.seeds import derive_seed

__all__ = [
    "AsIs",
    "BetaMissing",
    "Drawing",
    "GivenMissing",
    "KnownValues",
    "Numbers",
    "PresenceSpec",
    "UniformMissing",
    "check_probability",
    "draw_presence",
]

Table = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]


class KnownValues(Protocol):
    """Labels and columns of every sample, for drawings that depend on them.

    Only where all blocks are in one process: over a network nobody sees another's columns.
    """

    @property
    def labels(self) -> np.ndarray[Any, Any]:
        """The label of every sample."""

    def column(self, party: str, column: str) -> Numbers:
        """A party's column for every sample; NaN where the party does not have the sample."""


class Drawing(ABC):
    """How blocks go missing; each sample and block by itself."""

    @abstractmethod
    def probabilities(
        self, names: tuple[str, ...], draw: np.random.Generator, known: KnownValues | None
    ) -> Numbers:
        """How probably each party's block is missing: one number per party, or a row per sample.

        A drawing that depends on values needs ``known`` and gives a row for each of its samples.
        """


@final
@dataclass(frozen=True, kw_only=True)
class AsIs(Drawing):
    """Nothing goes missing beyond what the ids say."""

    def probabilities(
        self, names: tuple[str, ...], draw: np.random.Generator, known: KnownValues | None
    ) -> Numbers:
        """None."""
        return np.zeros(len(names))


@final
@dataclass(frozen=True, kw_only=True)
class UniformMissing(Drawing):
    """Every block with the same probability (LASER-VFL, Table 1)."""

    missing: float

    def __post_init__(self) -> None:
        check_probability("missing", self.missing)

    def probabilities(
        self, names: tuple[str, ...], draw: np.random.Generator, known: KnownValues | None
    ) -> Numbers:
        """The same for all."""
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

    def probabilities(
        self, names: tuple[str, ...], draw: np.random.Generator, known: KnownValues | None
    ) -> Numbers:
        """One draw per party."""
        return draw.beta(self.a, self.b, len(names))


@final
@dataclass(frozen=True, kw_only=True)
class GivenMissing(Drawing):
    """A probability per party by its name; parties not named miss nothing."""

    party: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.party.items():
            check_probability(f"party.{name}", value)

    def probabilities(
        self, names: tuple[str, ...], draw: np.random.Generator, known: KnownValues | None
    ) -> Numbers:
        """As given."""
        for name in self.party:
            if name not in names:
                raise ConfigError(
                    f"data.presence: there is no party '{name}'{nearest(name, list(names))}"
                )
        return np.array([self.party.get(name, 0.0) for name in names])


@dataclass(frozen=True, kw_only=True)
class PresenceSpec:
    """How blocks go missing: in the training part, and in the parts that are predicted.

    ``inference`` is for validation and test.
    """

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
    """Which blocks stay, one row per sample of a part and one column per party.

    ``samples`` are the sample numbers of the part, or how many there are.
    """
    drawing = spec.train if part == "train" else spec.inference
    # Probabilities of one run's blocks are the same in every part that shares the drawing.
    shared = np.random.default_rng(derive_seed(seed, "presence"))
    missing = drawing.probabilities(names, shared, known)
    if missing.ndim == 2:
        missing = missing[samples]
    num_samples = samples if isinstance(samples, int) else len(samples)
    draw = np.random.default_rng(derive_seed(seed, "presence", part))
    stays: Table = draw.random((num_samples, len(names))) >= missing
    return stays


def check_probability(name: str, value: float) -> None:
    """Refuse what is no probability."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name}: a probability from 0 to 1, got {value}")
