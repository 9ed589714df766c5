"""How many alignments a party has taken part in: its own count, wherever their outcomes go.

The count is what limits guessing, so it must not begin anew when an alignment is kept in another
directory, or made under another salt. It belongs to the party's table.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Protocol

from colonnade.align.terms import AlignPolicy
from colonnade.core.errors import StorageError
from colonnade.files import write_atomically

__all__ = ["Count", "FileCount", "MemoryCount"]


class Count(Protocol):
    """A party's count of alignments."""

    def admit(self, policy: AlignPolicy, today: int, party: str) -> None:
        """Count one that begins today, or refuse it."""


class MemoryCount:
    """A count in memory: gone with the process."""

    def __init__(self) -> None:
        self.days: list[int] = []

    def admit(self, policy: AlignPolicy, today: int, party: str) -> None:
        """Count one that begins today, or refuse it."""
        self.days = policy.check_days(self.days, today, party)


class FileCount:
    """A count in a file of the party's own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def admit(self, policy: AlignPolicy, today: int, party: str) -> None:
        """Count one that begins today, or refuse it; two at once count as two."""
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(
                f"{lock}: can't be written: {error.strerror}; a party counts its alignments, so "
                "name a directory for that in align.counts"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            days = policy.check_days(self._load(), today, party)
            content = json.dumps({"days": days}).encode()
            write_atomically(self.path, content, owner_only=True)
        finally:
            os.close(handle)

    def _load(self) -> list[int]:
        """Days on which alignments began; a damaged file is not taken for an empty one."""
        try:
            days = json.loads(self.path.read_bytes())["days"]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.path}: can't be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{self.path}: damaged count of alignments; {_REMEDY}") from error
        if not isinstance(days, list) or not all(type(day) is int for day in days):
            raise StorageError(f"{self.path}: damaged count of alignments; {_REMEDY}")
        return days


_REMEDY = "put back a copy of it, or remove it if nobody has aligned with this table"
