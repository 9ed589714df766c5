"""Parties that don't answer for a while: the delay scenarios of the thesis (section 5.4.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from colonnade.core.config import Choice
from colonnade.core.errors import ConfigError

__all__ = ["SLEEPS", "Awake", "RandomSleep", "RoundRobinSleep", "Sleep"]


class Sleep(ABC):
    """A schedule of absences: it decides when a party that is asked at some tick begins to work."""

    @abstractmethod
    def awake_at(self, tick: int, share: float) -> int:
        """The tick at which it begins; ``share`` in [0, 1) is drawn evenly for every call."""


@dataclass(frozen=True, kw_only=True)
class Awake(Sleep):
    """Always there."""

    def awake_at(self, tick: int, share: float) -> int:
        return tick


@dataclass(frozen=True, kw_only=True)
class RandomSleep(Sleep):
    """Sleeps with a probability before answering a call, each time anew."""

    probability: float = 0.25
    ticks: int = 5000

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ConfigError(f"probability: from 0 to 1, got {self.probability}")

    def awake_at(self, tick: int, share: float) -> int:
        return tick + self.ticks if share < self.probability else tick


@dataclass(frozen=True, kw_only=True)
class RoundRobinSleep(Sleep):
    """One of ``of`` parties sleeps at a time, each for ``ticks``; ``turn`` counts from 0."""

    turn: int
    of: int
    ticks: int = 5000

    def __post_init__(self) -> None:
        if not 0 <= self.turn < self.of:
            raise ConfigError(f"turn: from 0 to below {self.of}, got {self.turn}")

    def awake_at(self, tick: int, share: float) -> int:
        asleep = (tick // self.ticks) % self.of == self.turn
        return (tick // self.ticks + 1) * self.ticks if asleep else tick


SLEEPS = Choice(
    tag="kind",
    options={"awake": Awake, "random": RandomSleep, "round_robin": RoundRobinSleep},
)
