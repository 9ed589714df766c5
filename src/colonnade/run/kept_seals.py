"""Seals of parties' accounts, kept at the label holder: it gives each back when they meet again.

A party whose account is older than its own seal has put back an old copy, and says so. The label
holder can't read a seal.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from colonnade.core.errors import StorageError
from colonnade.files import locked
from colonnade.run.storage import read_json, write_json

__all__ = ["KeptSeals"]


class KeptSeals:
    """The newest seal of every party's account, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, bytes]:
        """Seals by party."""
        if not self._path.exists():
            return {}
        try:
            return {name: bytes.fromhex(seal) for name, seal in read_json(self._path).items()}
        except (TypeError, ValueError) as error:
            raise StorageError(f"{self._path}: damaged: not seals by party") from error

    def keep(self, seals: Mapping[str, bytes]) -> None:
        """Keep newer seals in place of older ones."""
        if seals:
            with locked(self._path.with_suffix(".lock")):
                known = self.read() | dict(seals)
                write_json(self._path, {name: seal.hex() for name, seal in sorted(known.items())})
