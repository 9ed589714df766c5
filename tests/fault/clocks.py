"""A wall clock that a test moves: everything that the library reads the time of day from."""

from __future__ import annotations

import datetime
import time
import types
from pathlib import Path
from typing import Any

from colonnade.federate import certificates
from colonnade.protect import ledger


class _AnyDatetime(type):
    """The real class's instances are instances of the moved one as well."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime.datetime)


def read_wall_clock_through(file: Path) -> None:
    """From now on this process's wall clock is off by the seconds in a file, if there is one.

    That is ``time.time`` (logs, limits per day), the time that certificates and invitations are
    held against, and the ledger's. TLS reads the system's own clock. The monotonic clock stays as
    it is, as it does when somebody sets the time of a machine.
    """
    real = time.time

    def moved() -> float:
        return real() + (float(file.read_text()) if file.exists() else 0.0)

    class Moved(datetime.datetime, metaclass=_AnyDatetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.fromtimestamp(moved(), tz)

    time.time = moved
    certificates.datetime = types.SimpleNamespace(  # type: ignore[assignment]
        **{**vars(datetime), "datetime": Moved}
    )
    ledger.datetime = Moved  # type: ignore[misc, assignment]
