"""Limits of what a run may cost a party: runs, time, threads and sizes; and the runs it has had."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from colonnade.core.errors import ConfigError, Refused, StorageError
from colonnade.files import locked, write_atomically
from colonnade.protect.policy import refusal

__all__ = ["Limits", "RunTime", "Runs", "kept_megabytes"]

_DAY_SECONDS = 86_400
_HOUR_SECONDS = 3_600


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that a run may ask of an agent's machine; every key is at least 1.

    Attributes:
        max_runs: Runs that begin in ``per_days`` days.
        per_days: See ``max_runs``.
        max_hours: How long after its beginning a run may still be trained; looked at all along.
        max_threads: Threads per operation.
        max_exchanges: Exchanges in a run, where its settings name a number.
        max_local_steps: Local steps on one embedding.
        max_outputs: The width of the task's outputs.
        max_samples: Samples in a run's roll.
        max_parameters: Weights of the party's networks.
        max_kept_megabytes: What weights of all runs may take on the disk before one more begins.
        max_checkpoints: Checkpoints that a run has here at a time.
        max_ledger_megabytes: The ledger of a run; when it is full nothing more leaves.
    """

    max_runs: int = 100
    per_days: int = 30
    max_hours: int = 168
    max_threads: int = 64
    max_exchanges: int = 10_000_000
    max_local_steps: int = 1_000
    max_outputs: int = 10_000
    max_samples: int = 100_000_000
    max_parameters: int = 100_000_000
    max_kept_megabytes: int = 100_000
    max_checkpoints: int = 16
    max_ledger_megabytes: int = 1_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ConfigError(f"{name}: must be at least 1, got {value}")

    def check(self, party: str, asked: Mapping[str, int | None]) -> None:
        """Check numbers against the limits.

        Args:
            party: Whose limits these are, for the message.
            asked: What is asked, by the name of its limit; None where nothing is.

        Raises:
            Refused: A number is above its limit; the message names it.
        """
        for name, value in asked.items():
            most = getattr(self, name)
            if value is not None and value > most:
                what = name.removeprefix("max_").replace("_", " ")
                raise refusal(party, f"limits.{name}", f"{value} {what}; it allows {most}")


def kept_megabytes(home: Path) -> int:
    """What the weights of all runs in a party's directory take, rounded down."""
    return sum(file.stat().st_size for file in home.glob("runs/*/*.safetensors")) // 1_000_000


class RunTime:
    """How long a run may go on, for whoever looks between two steps of it.

    By the wall clock and by one that nobody can set back: the time is over when either says so.

    Args:
        limits: What the party allows.
        party: The party's name.
        began: When the run began, in seconds from now; below 0 if it goes on.
    """

    def __init__(self, limits: Limits, party: str, began: float) -> None:
        self._limits, self._party = limits, party
        left = began + limits.max_hours * _HOUR_SECONDS
        self._ends = (time.time() + left, time.monotonic() + left)

    def check(self) -> None:
        """Raise Refused if the time is over."""
        wall, steady = self._ends
        if time.time() > wall or time.monotonic() > steady:
            raise _too_long(self._limits, self._party)


class Runs:
    """The runs that a party took part in, in a file of its own: when each of them began.

    The time is the party's own wall clock, in seconds since 1970. A clock that was set back makes
    no run younger than its beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, limits: Limits, party: str, now: float, *, run: str | None = None) -> None:
        """Refuse one more run if there were too many, or a run that began too long ago."""
        self._checked(self._load(), limits, party, now, run)

    def begin(self, limits: Limits, party: str, now: float, *, run: str) -> RunTime:
        """Count a run that begins now, or goes on; refuse as ``check`` does."""
        with locked(self.path.with_name(f".{self.path.name}.lock"), ""):
            known = self._load()
            self._checked(known, limits, party, now, run)
            if run not in known:
                content = json.dumps({**known, run: now}, indent=2)
                write_atomically(self.path, content.encode(), owner_only=True)
        return RunTime(limits, party, known.get(run, now) - now)

    def began(self) -> dict[str, float]:
        """When each run began, in seconds since 1970."""
        return self._load()

    def _checked(
        self, known: Mapping[str, float], limits: Limits, party: str, now: float, run: str | None
    ) -> None:
        if run is not None and run in known:
            if now - known[run] > limits.max_hours * _HOUR_SECONDS:
                raise _too_long(limits, party)
            return
        since = now - limits.per_days * _DAY_SECONDS
        recent = sum(began > since for began in known.values())
        if recent >= limits.max_runs:
            raise refusal(
                party,
                "limits.max_runs",
                f"it takes part in {limits.max_runs} runs in {limits.per_days} days and has had "
                f"{recent}; wait, or have its policy changed there",
            )

    def _load(self) -> dict[str, float]:
        """When each run began; a damaged file is an error, not an empty list."""
        try:
            found = json.loads(self.path.read_bytes())
            if not isinstance(found, dict) or any(
                not isinstance(began, int | float) for began in found.values()
            ):
                raise ValueError
            return found
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageError(f"{self.path}: can't be read: {error.strerror}") from error
        except ValueError as error:
            raise StorageError(
                f"{self.path}: damaged list of runs; put it back from a copy"
            ) from error


def _too_long(limits: Limits, party: str) -> Refused:
    what = f"the run began more than {limits.max_hours} hours ago; begin another"
    return refusal(party, "limits.max_hours", what)
