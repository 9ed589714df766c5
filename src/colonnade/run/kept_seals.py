"""Seals of parties' accounts and ledgers, kept at the label holder until they meet again.

A party whose account or ledger is older than its own seal has put back an old copy, and says so.
The label holder can't read an account's seal. A ledger's is its number of entries and last hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.core.errors import StorageError
from colonnade.files import locked
from colonnade.run.storage import read_json, write_json

__all__ = ["HEADS", "SEALS", "KeptHeads", "KeptSeals"]

# Their names: of a federation or a run, and of a run.
SEALS = "account_seals.json"
HEADS = "ledger_heads.json"


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


class KeptHeads:
    """How long every party's ledger of one run was at most, and its hash there, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def newest(self, heads: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Of these heads and those kept here, every party's with the most entries."""
        known = read_json(self._path) if self._path.exists() else {}
        try:
            return {
                name: max(
                    (dict(item[name]) for item in (known, heads) if name in item),
                    key=lambda head: int(head["entries"]),
                )
                for name in sorted({*known, *heads})
            }
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{self._path}: damaged: not ledgers' heads by party") from error

    def keep(self, heads: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep longer ones in place of shorter ones."""
        if heads:
            with locked(self._path.with_suffix(".lock")):
                write_json(self._path, self.newest(heads))
