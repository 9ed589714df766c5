"""How long things take on the simulated clock: constant, random from a seed, or from a trace."""

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
    """A number of ticks, drawn anew each time."""

    @abstractmethod
    def ticks(self, share: float, number: int, now: int) -> int:
        """The ``number``-th draw at tick ``now``, from a share in [0, 1) drawn evenly."""

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

    def ticks(self, share: float, number: int, now: int) -> int:
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

    def ticks(self, share: float, number: int, now: int) -> int:
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

    def ticks(self, share: float, number: int, now: int) -> int:
        """A draw by inversion."""
        return max(self.least, round(-self.mean * math.log1p(-share)))


@dataclass(frozen=True, kw_only=True)
class Trace(Duration):
    """One value after the other, from the start again at the end."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.values or min(self.values) < 0:
            raise ConfigError("values: give at least one number of ticks, none negative")

    def ticks(self, share: float, number: int, now: int) -> int:
        """The next value."""
        return self.values[number % len(self.values)]


@dataclass(frozen=True, kw_only=True)
class Utilization(Duration):
    """Slower while the machine is busy: ``unit / (1 - c)`` ticks at CPU utilisation c.

    Flex-VFL, section VII D and F. The shares ``values`` follow one another every ``period`` ticks,
    from the start again at the end; without a period the next one holds for the next draw. In place
    of values, ``trace`` names a recorded one (``google``, ``planetlab``, ``nab``) and ``machine``
    a row of it; whoever builds the fabric puts the values in.
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
        """The unit, stretched by what else the machine does."""
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

    A checkpoint needs to know only how many were drawn.
    """

    def __init__(self, duration: Duration, seed: int) -> None:
        self._duration = duration
        # What every draw gives, if they are all the same.
        self.constant = duration.ticks(0.0, 0, 0) if duration.is_constant else None
        self._shares = Shares(seed)
        self.num_draws = 0

    def draw(self, now: int = 0) -> int:
        """The next duration, for something that begins at tick ``now``."""
        ticks = self.peek(now)
        self.num_draws += 1
        return ticks

    def peek(self, now: int = 0, ahead: int = 0) -> int:
        """What a draw at ``now`` will give, ``ahead`` draws after the next."""
        if self.constant is not None:
            return self.constant
        number = self.num_draws + ahead
        return self._duration.ticks(self._shares.at(number), number, now)
