"""How a learning rate falls over a run: by the number of the exchange, whatever a party does in it.

A schedule keeps no state. Everybody knows the exchange that a call belongs to, so a resumed run, a
late party and a party with several local steps all have the rate of that exchange.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, final

from colonnade.core.config import Choice
from colonnade.core.errors import ConfigError

__all__ = ["SCHEDULES", "CosineSchedule", "Schedule", "SteadySchedule", "StepSchedule"]


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """Base of schedules."""

    @abstractmethod
    def factor(self, exchange: int) -> float:
        """The share of the learning rate that is left in an exchange.

        Args:
            exchange: Its number, from 0. Beyond the schedule's length the last share stays.

        Returns:
            From 0 to 1; 1 where the length is not known.
        """

    def over(self, num_exchanges: int) -> Self:
        """The same schedule over a run of so many exchanges, unless it has a length of its own."""
        return self


@final
@dataclass(frozen=True, kw_only=True)
class SteadySchedule(Schedule):
    """The same rate throughout."""

    def factor(self, exchange: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class _Falling(Schedule):
    """Base of schedules with a length: ``exchanges``, or the run's if not given."""

    exchanges: int | None = None

    def __post_init__(self) -> None:
        if self.exchanges is not None and self.exchanges < 1:
            raise ConfigError(f"exchanges: must be at least 1, got {self.exchanges}")

    def factor(self, exchange: int) -> float:
        if self.exchanges is None:
            return 1.0
        return self._left(min(max(exchange, 0), self.exchanges), self.exchanges)

    def over(self, num_exchanges: int) -> Self:
        return self if self.exchanges is not None else replace(self, exchanges=num_exchanges)

    @abstractmethod
    def _left(self, passed: int, length: int) -> float:
        """The share that is left after ``passed`` of ``length`` exchanges."""


@final
@dataclass(frozen=True, kw_only=True)
class CosineSchedule(_Falling):
    """Half a cosine wave, down to a share ``floor`` of the rate."""

    floor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.floor <= 1:
            raise ConfigError(f"floor: a share from 0 to 1, got {self.floor}")

    def _left(self, passed: int, length: int) -> float:
        angle = math.pi * passed / length
        return self.floor + (1 - self.floor) * (1 + math.cos(angle)) / 2


@final
@dataclass(frozen=True, kw_only=True)
class StepSchedule(_Falling):
    """Multiplied by ``times`` after every share ``every`` of the length."""

    every: float = 1 / 3
    times: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.every <= 1:
            raise ConfigError(f"every: a share of the run, above 0 and up to 1, got {self.every}")
        if not 0 < self.times <= 1:
            raise ConfigError(f"times: above 0 and up to 1, got {self.times}")

    def _left(self, passed: int, length: int) -> float:
        return float(self.times ** (passed // max(1, round(self.every * length))))


_KINDS: Mapping[str, type[Schedule]] = {
    "none": SteadySchedule,
    "cosine": CosineSchedule,
    "step": StepSchedule,
}

SCHEDULES = Choice(tag="kind", options=_KINDS)
