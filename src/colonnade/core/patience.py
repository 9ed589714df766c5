"""Patience: how long the label holder waits for a party, and what it does then; arrivals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from colonnade.core.errors import ConfigError

__all__ = ["Arrival", "Patience"]

# A timeout that is meant for exchanges may be shorter than any checkpoint takes.
_LAST_TICKS = 10_000


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for a party that does not answer, and what then.

    ``timeout`` counts ticks (milliseconds); without one the label holder waits for ever. When it
    has passed, ``stop`` ends the run with an error that names the party, ``continue`` goes on
    without it (only for methods that can).
    """

    timeout: int | None = None
    then: Literal["stop", "continue"] = "stop"

    def __post_init__(self) -> None:
        if self.timeout is not None and self.timeout < 1:
            raise ConfigError(f"timeout: at least 1 tick, got {self.timeout}")

    def at_the_end(self) -> Patience:
        """Of a method that waits for nobody, once nothing else is left to do.

        Returns:
            At least ten seconds, and then on without whoever did not answer.
        """
        timeout = None if self.timeout is None else max(self.timeout, _LAST_TICKS)
        return Patience(timeout=timeout, then="continue")


class Arrival(NamedTuple):
    """One answer to a started call.

    Attributes:
        party: Who answered.
        value: The answer.
        tick: When it arrived.
    """

    party: str
    value: Any
    tick: int
