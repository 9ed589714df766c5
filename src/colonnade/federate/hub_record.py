"""The hub's record of who came and went: hash-chained like a party's ledger.

FEDERATION/audit holds one entry for every invitation, enrolment, renewal, revocation, admission,
refusal and session. The chain is that of ``protect.ledger``: a changed, removed or added line
shows, and the seal beside it shows a missing end. Several processes write (a training, an enrolment
service, a revocation on the command line), one after the other.

Parties witness how long the record is (``record_witness``). A record that went back with a restored
copy shows by what they have seen; then nobody is admitted until the label holder takes note of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colonnade.core.errors import Refused, StorageError
from colonnade.core.printable import printable
from colonnade.files import locked
from colonnade.protect.ledger import MISSING, Ledger, LedgerFault, read_ledger, verify_ledger

__all__ = ["HubRecord"]

_PLACE = "audit"
_LOCK = "audit.lock"
# A stranger that is refused over and over must not fill the disk.
_MOST_REFUSALS = 60
_MINUTE_SECONDS = 60.0


class HubRecord:
    """The record of one federation's directory; ``name`` is the label holder's."""

    def __init__(self, directory: Path, name: str) -> None:
        self._place = directory / _PLACE
        self._lock = directory / _LOCK
        self._name = name
        self._turn = threading.Lock()
        self._refusals: deque[float] = deque()
        self._num_left_out = 0

    def note(self, event: str, **fields: Any) -> None:
        """Write one entry, on the disk when this returns; StorageError if it can't be.

        Whatever it is about must not happen then: call this before it takes effect, or within the
        change that it tells of.
        """
        plain = {
            key: printable(value, most=500) if isinstance(value, str) else value
            for key, value in fields.items()
        }
        with self._open() as record:
            record.append({"event": event, **plain})
            record.seal()

    @contextmanager
    def _open(self) -> Iterator[Ledger]:
        with self._turn, locked(self._lock):
            try:
                record = Ledger(self._place, run=self._name)
            except OSError as error:
                raise StorageError(f"{self._place}: can't be written: {error.strerror}") from error
            try:
                yield record
            finally:
                record.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """While it lasts nobody writes to the record, and its seal fits it."""
        with self._open() as record:
            record.seal()
            yield

    def head(self) -> tuple[int, str]:
        """How many entries there are, and the hash of the last."""
        with self._open() as record:
            sealed = record.seal()
        return int(sealed["entries"]), str(sealed["head"])

    def confirm(self, num_entries: int, head: str) -> bool:
        """Whether there were so many entries here once, and the last had this hash.

        If not, the record is behind from then on, until somebody takes note of it.
        """
        with self._open() as record:
            try:
                record.confirm(num_entries, head, party=self._name)
            except Refused:
                return False
        return True

    @property
    def is_behind(self) -> bool:
        """Whether a party has seen entries that are not here."""
        return (self._place / MISSING).exists()

    def acknowledge(self) -> bool:
        """Take note that entries are missing, and write that down; False if none are."""
        with self._open() as record:
            return record.acknowledge()

    def note_refusal(self, *, reason: str, **fields: Any) -> None:
        """Write that somebody was refused: up to 60 in a minute, and how many were left out."""
        now = time.monotonic()
        while self._refusals and now - self._refusals[0] > _MINUTE_SECONDS:
            self._refusals.popleft()
        if len(self._refusals) >= _MOST_REFUSALS:
            self._num_left_out += 1
            return
        self._refusals.append(now)
        left_out, self._num_left_out = self._num_left_out, 0
        more = {"left_out": left_out} if left_out else {}
        self.note("refused", reason=reason, **fields, **more)

    def entries(self) -> Iterator[dict[str, Any]]:
        """Everything so far."""
        return read_ledger(self._place) if self._place.exists() else iter(())

    def verify(self) -> tuple[int, LedgerFault | None]:
        """How many entries hold, and the first fault."""
        return verify_ledger(self._place) if self._place.exists() else (0, None)
