"""The register at the hub: members, invitations and revocations in one file.

Every change takes a lock, reads the file anew and replaces it. So two enrolments with one
invitation, in threads or in processes, happen one after the other, and the second finds the
invitation used. Readers read the file again when it was replaced, so a running hub knows of a
revocation at its next check.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, StorageError
from colonnade.files import locked, write_atomically

__all__ = ["Invited", "Member", "Register", "RegisterFile", "Revocation"]

REGISTER = "register.json"
_LOCK = "register.lock"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A party that has enrolled; times are ISO 8601, certificates go by their serial number.

    ``successor`` is a certificate that was renewed and not used yet. The old one is good until the
    new one is used: a party that crashed before it kept the new one is not locked out.
    """

    enrolled: str
    serial: str
    expires: str
    successor: str | None = None
    successor_expires: str | None = None


@dataclass(frozen=True, kw_only=True)
class Invited:
    """An invitation, known by the hash of its token.

    ``key`` and ``certificate`` belong to the party that used it. The same key may ask for the
    answer again, another key may not.
    """

    party: str
    made: str
    expires: str
    used: str | None = None
    withdrawn: str | None = None
    key: str | None = None
    certificate: str | None = None


@dataclass(frozen=True, kw_only=True)
class Revocation:
    """A certificate that is refused although it has not expired."""

    party: str
    revoked: str


@dataclass(frozen=True, kw_only=True)
class Register:
    """Members by name, invitations by hash, revocations by serial number."""

    version: int = 1
    members: dict[str, Member] = field(default_factory=dict)
    invitations: dict[str, Invited] = field(default_factory=dict)
    revoked: dict[str, Revocation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version != 1:
            raise ConfigError(f"version: this Colonnade reads version 1, not {self.version}")


# The file's inode, time and size, and its content.
_Seen = tuple[tuple[int, int, int], Register]


class RegisterFile:
    """The register on disk."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / REGISTER
        self._lock = directory / _LOCK
        self._seen: _Seen | None = None

    def create(self) -> None:
        """Begin an empty register."""
        write_atomically(self.path, _encoded(Register()), owner_only=True)

    def read(self) -> Register:
        """The register as it is now; callers must not change it."""
        self._seen = self._load(self._seen)
        return self._seen[1]

    def _load(self, seen: _Seen | None) -> _Seen:
        try:
            found = self.path.stat()
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen is not None and seen[0] == stamp:
                return seen
            # The stamp is taken first: a file that is replaced in between is read again.
            return stamp, _decoded(self.path.read_bytes(), self.path)
        except FileNotFoundError as error:
            raise StorageError(
                f"{self.path}: no such file; is this a federation's directory? "
                "(colonnade federation init makes one)"
            ) from error
        except OSError as error:
            raise StorageError(f"{self.path}: can't be read: {error.strerror}") from error

    @contextmanager
    def changing(self) -> Iterator[Register]:
        """The register, to be changed in place; written if the block raises nothing."""
        with locked(self._lock):
            # Not the object that readers share: they must not see a change that is not written.
            _, register = self._load(None)
            before = _encoded(register)
            yield register
            after = _encoded(register)
            if after != before:
                write_atomically(self.path, after, owner_only=True)


def _encoded(register: Register) -> bytes:
    return (json.dumps(dump(register), indent=2, sort_keys=True) + "\n").encode()


def _decoded(content: bytes, path: Path) -> Register:
    try:
        return parse(Register, json.loads(content))
    except (ValueError, RecursionError) as error:  # ConfigError is a ValueError
        raise StorageError(f"{path}: damaged: {error}") from error
