"""A party's count of the alignments that it took part in.

The count limits guessing. It belongs to the party's table, so that it does not begin anew with
another directory or another salt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from colonnade.align.terms import AlignPolicy
from colonnade.core.errors import StorageError
from colonnade.files import locked, write_atomically

__all__ = ["Count", "FileCount", "MemoryCount"]


class Count(Protocol):
    """A party's count of alignments."""

    def admit(self, policy: AlignPolicy, today: int, party: str) -> None:
        """Count an alignment that begins today, or refuse it."""


class MemoryCount(Count):
    """A count in memory, which ends with the process."""

    def __init__(self) -> None:
        self.days: list[int] = []

    def admit(self, policy: AlignPolicy, today: int, party: str) -> None:
        self.days = policy.check_days(self.days, today, party)


class FileCount(Count):
    """A count in a file of the party's own; two alignments at the same time count as two."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def admit(self, policy: AlignPolicy, today: int, party: str) -> None:
        lock = self.path.with_name(f".{self.path.name}.lock")
        remedy = "; a party counts its alignments, so name a directory for that in align.counts"
        with locked(lock, remedy):
            days = policy.check_days(self._load(), today, party)
            content = json.dumps({"days": days}).encode()
            write_atomically(self.path, content, owner_only=True)

    def _load(self) -> list[int]:
        """Days on which alignments began; a damaged file is an error, not an empty count."""
        try:
            days = json.loads(self.path.read_bytes())["days"]
            if not isinstance(days, list) or not all(type(day) is int for day in days):
                raise ValueError
            return days
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.path}: can't be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{self.path}: damaged count of alignments; put back a copy of it, or remove it "
                "if nobody has aligned with this table"
            ) from error
