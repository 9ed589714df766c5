"""Durations on the simulated clock: constant, random from a seed, or from a trace.

``Stopwatch`` draws them for the simulated fabric; recorded traces are in ``colonnade.data``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.core.config import Choice
from colonnade.core.errors import ConfigError

__all__ = [
    "DURATIONS",
    "Constant",
    "Duration",
    "Exponential",
    "Shares",
    "Stopwatch",
    "Trace",
    "Uniform",
    "Utilization",
]

_CHUNK = 256


class Duration(ABC):
    """A distribution of ticks."""

    @abstractmethod
    def ticks(self, share: float, number: int, now: int) -> int:
        """The ``number``-th draw at tick ``now``, from a share in [0, 1) drawn evenly."""


@dataclass(frozen=True, kw_only=True)
class Constant(Duration):
    """Always the same."""

    value: int = 0

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ConfigError(f"value: ticks can't be negative, got {self.value}")

    def ticks(self, share: float, number: int, now: int) -> int:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Uniform(Duration):
    """Any whole number of ticks from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ConfigError(f"low, high: need 0 <= low <= high, got {self.low}, {self.high}")

    def ticks(self, share: float, number: int, now: int) -> int:
        return self.low + int(share * (self.high - self.low + 1))


@dataclass(frozen=True, kw_only=True)
class Exponential(Duration):
    """Exponentially distributed with this mean, rounded to whole ticks, at least ``least``."""

    mean: float
    least: int = 0

    def __post_init__(self) -> None:
        if not self.mean > 0:
            raise ConfigError(f"mean: must be above 0, got {self.mean}")

    def ticks(self, share: float, number: int, now: int) -> int:
        return max(self.least, round(-self.mean * math.log1p(-share)))


@dataclass(frozen=True, kw_only=True)
class Trace(Duration):
    """One value after the other, from the start again at the end.

    There is one for each draw, or, with a period, one for each ``period`` of ticks.
    """

    values: tuple[int, ...]
    period: int | None = None

    def __post_init__(self) -> None:
        if not self.values or min(self.values) < 0:
            raise ConfigError("values: give at least one number of ticks, none negative")
        if self.period is not None and self.period < 1:
            raise ConfigError("period: at least 1 tick")

    def ticks(self, share: float, number: int, now: int) -> int:
        at = number if self.period is None else now // self.period
        return self.values[at % len(self.values)]


@dataclass(frozen=True, kw_only=True)
class Utilization(Duration):
    """Slower while the machine is busy: ``unit / (1 - c)`` ticks at CPU utilisation c.

    The model is that of Flex-VFL, sections VII D and F. ``values`` are the utilisations, repeated
    at their end: one for each ``period`` of ticks, or without a period one for each draw. Instead
    of values, ``trace`` names a recorded trace (``google``, ``planetlab``, ``nab``) and ``machine``
    a row of it; ``with_traces`` puts the values in.
    """

    values: tuple[float, ...] = ()
    unit: int
    period: int | None = None
    trace: str | None = None
    machine: int = 0

    def __post_init__(self) -> None:
        if bool(self.values) == (self.trace is not None):
            raise ConfigError("values: give either values or the name of a trace")
        if self.values and not 0 <= min(self.values) <= max(self.values) < 1:
            raise ConfigError("values: give shares of the machine in use, from 0 to below 1")
        if self.unit < 1 or (self.period is not None and self.period < 1):
            raise ConfigError("unit, period: at least 1 tick")

    def ticks(self, share: float, number: int, now: int) -> int:
        if not self.values:
            raise ConfigError(f"trace: '{self.trace}' was not read; give values")
        at = number if self.period is None else now // self.period
        return round(self.unit / (1 - self.values[at % len(self.values)]))


DURATIONS = Choice(
    tag="kind",
    options={
        "constant": Constant,
        "uniform": Uniform,
        "exponential": Exponential,
        "trace": Trace,
        "utilization": Utilization,
    },
    number=("constant", "value"),
)


class Shares:
    """Even draws from [0, 1): the n-th depends on seed and n alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._chunk = -1
        self._values: np.ndarray[Any, Any] = np.empty(0)

    def at(self, number: int) -> float:
        """The ``number``-th draw."""
        chunk, place = divmod(number, _CHUNK)
        if chunk != self._chunk:
            # Philox counts blocks of four numbers.
            raw = np.random.Philox(key=self._seed, counter=chunk * (_CHUNK // 4)).random_raw(_CHUNK)
            self._values, self._chunk = (raw >> np.uint64(11)) * 2.0**-53, chunk
        return float(self._values[place])


class Stopwatch:
    """Draws one duration after another from its own seeded stream.

    Its only state is the number of draws.
    """

    def __init__(self, duration: Duration, seed: int) -> None:
        self._duration = duration
        # The value of every draw, if they are all the same: then none needs to be made.
        self.constant = duration.value if isinstance(duration, Constant) else None
        self._shares = Shares(seed)
        self.num_draws = 0

    def draw(self, now: int = 0) -> int:
        """The next duration, for something that begins at tick ``now``."""
        ticks = self.peek(now)
        self.num_draws += 1
        return ticks

    def peek(self, now: int = 0, ahead: int = 0) -> int:
        """The result of a draw at ``now``, ``ahead`` draws after the next, without drawing."""
        if self.constant is not None:
            return self.constant
        number = self.num_draws + ahead
        return self._duration.ticks(self._shares.at(number), number, now)
