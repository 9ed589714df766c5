"""How long things take on the simulated clock: constant, random from a seed, or from a trace."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.core.config import Choice
from colonnade.core.errors import ConfigError

__all__ = ["DURATIONS", "Constant", "Duration", "Exponential", "Stopwatch", "Trace", "Uniform"]

_CHUNK = 256


class Duration(ABC):
    """A number of ticks, drawn anew each time."""

    @abstractmethod
    def ticks(self, share: float, number: int) -> int:
        """The ``number``-th draw, from a share in [0, 1) that the caller draws evenly."""

    @property
    def is_constant(self) -> bool:
        """Whether every draw is the same, so that none needs to be made."""
        return False


@dataclass(frozen=True, kw_only=True)
class Constant(Duration):
    """Always the same."""

    value: int = 0

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ConfigError(f"value: ticks can't be negative, got {self.value}")

    def ticks(self, share: float, number: int) -> int:
        """The value."""
        return self.value

    @property
    def is_constant(self) -> bool:
        """Yes."""
        return True


@dataclass(frozen=True, kw_only=True)
class Uniform(Duration):
    """Any whole number of ticks from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ConfigError(f"low, high: need 0 <= low <= high, got {self.low}, {self.high}")

    def ticks(self, share: float, number: int) -> int:
        """An even draw."""
        return self.low + int(share * (self.high - self.low + 1))


@dataclass(frozen=True, kw_only=True)
class Exponential(Duration):
    """Exponentially distributed with this mean, rounded to whole ticks, at least ``least``."""

    mean: float
    least: int = 0

    def __post_init__(self) -> None:
        if not self.mean > 0:
            raise ConfigError(f"mean: must be above 0, got {self.mean}")

    def ticks(self, share: float, number: int) -> int:
        """A draw by inversion."""
        return max(self.least, round(-self.mean * math.log1p(-share)))


@dataclass(frozen=True, kw_only=True)
class Trace(Duration):
    """One value after the other, from the start again at the end."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.values or min(self.values) < 0:
            raise ConfigError("values: give at least one number of ticks, none negative")

    def ticks(self, share: float, number: int) -> int:
        """The next value."""
        return self.values[number % len(self.values)]


DURATIONS = Choice(
    tag="kind",
    options={
        "constant": Constant,
        "uniform": Uniform,
        "exponential": Exponential,
        "trace": Trace,
    },
    number=("constant", "value"),
)


class Stopwatch:
    """Draws one duration after another from its own seeded stream.

    The n-th draw depends on seed and n alone, so a checkpoint needs to know n only.
    """

    def __init__(self, duration: Duration, seed: int) -> None:
        self._duration = duration
        self._seed = seed
        self._constant = duration.ticks(0.0, 0) if duration.is_constant else None
        self._chunk = -1
        self._shares: np.ndarray[Any, Any] = np.empty(0)
        self.num_draws = 0

    def draw(self) -> int:
        """The next duration."""
        if self._constant is not None:
            return self._constant
        number = self.num_draws
        self.num_draws += 1
        chunk, place = divmod(number, _CHUNK)
        if chunk != self._chunk:
            # Philox counts blocks of four numbers.
            raw = np.random.Philox(key=self._seed, counter=chunk * (_CHUNK // 4)).random_raw(_CHUNK)
            self._shares, self._chunk = (raw >> np.uint64(11)) * 2.0**-53, chunk
        return self._duration.ticks(float(self._shares[place]), number)
