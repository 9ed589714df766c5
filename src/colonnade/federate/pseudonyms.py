"""Pseudonyms: how a query names samples, by a key that the label holder shares with one party.

An alignment gives every sample one number, the same at all participants. Queries name samples by
the place of their numbers in a secret order. The pair agrees on the key of that order when it
aligns; each side gives half of it. Alignments of an earlier Colonnade have no keys: there a query
names samples by their numbers.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colonnade.align.alignment_file import PartyAlignment
from colonnade.align.group import derive, derive_order
from colonnade.align.participant_files import DirectoryStore
from colonnade.core.errors import ProtocolError, StorageError
from colonnade.files import write_atomically
from colonnade.run.samples import Rows
from colonnade.run.storage import party_directory, read_json

__all__ = [
    "PairNames",
    "Pseudonyms",
    "agreed_key",
    "check_mark",
    "keep_keys",
    "kept_key",
    "mark_of",
    "new_share",
]

_SHARE_BYTES = 32
_HEXADECIMAL = re.compile(rf"[0-9a-f]{{{2 * _SHARE_BYTES}}}")
# Beside an alignment: the key of every pair that this participant is in, by the other's name.
_FILE = "pseudonyms.json"


def new_share() -> str:
    """One side's half of a key."""
    return secrets.token_hex(_SHARE_BYTES)


def agreed_key(digest: str, party: str, holders: str, partys: str) -> str:
    """The key of a pair for an alignment; ProtocolError if a share is none.

    Args:
        digest: The alignment's.
        party: The party's name.
        holders: The label holder's share.
        partys: The party's share.

    Returns:
        Hexadecimal digits, the same at both sides. Neither side can choose it.
    """
    if not (_HEXADECIMAL.fullmatch(holders) and _HEXADECIMAL.fullmatch(partys)):
        raise ProtocolError(f"a share of a key is {2 * _SHARE_BYTES} hexadecimal digits")
    shares = bytes.fromhex(holders) + bytes.fromhex(partys)
    return hmac.digest(shares, f"pseudonyms\0{digest}\0{party}".encode(), "sha256").hex()


def keep_keys(place: Path, keys: Mapping[str, str]) -> None:
    """Write keys beside an alignment, for its owner only; ProtocolError if there are some."""
    if (place / _FILE).exists():
        raise ProtocolError("the keys of an alignment are agreed on once; align again for others")
    write_atomically(place / _FILE, json.dumps(dict(keys)).encode(), owner_only=True)


def kept_key(place: Path, other: str) -> bytes:
    """The key that this participant shares with another; empty in an earlier alignment."""
    if not (place / _FILE).exists():
        return b""
    key = read_json(place / _FILE).get(other, "")
    if not isinstance(key, str) or (key and not _HEXADECIMAL.fullmatch(key)):
        raise StorageError(f"{place / _FILE}: damaged; put it back, or align again")
    return bytes.fromhex(key)


def mark_of(key: bytes) -> str:
    """A word for a key: it tells whether two sides have the same, and nothing else of it."""
    return derive(key, "mark").hex()[:32] if key else ""


def check_mark(key: bytes, mark: str, party: str) -> None:
    """Raise ProtocolError unless the label holder's mark is that of the party's key."""
    if not hmac.compare_digest(mark_of(key).encode(), mark.encode()):
        raise ProtocolError(
            f"party '{party}' has another key of pseudonyms for this alignment than the label "
            "holder: one of them went back to an earlier copy; align again"
        )


class Pseudonyms:
    """One pair's names of the samples of an alignment.

    Args:
        key: The pair's; empty for one that has none, whose names are the numbers.
        num_samples: How many samples the alignment has.
    """

    def __init__(self, key: bytes, num_samples: int) -> None:
        self.mark = mark_of(key)
        self._number_of = self._name_of = np.zeros(0, dtype=np.int32)
        if key:
            self._number_of = derive_order(key, "pseudonyms", num_samples)
            self._name_of = np.empty_like(self._number_of)
            self._name_of[self._number_of] = np.arange(num_samples, dtype=np.int32)

    def of(self, numbers: Rows) -> Rows:
        """The names of samples, by their numbers in the alignment."""
        return self._name_of[numbers].astype(np.int64) if self.mark else numbers

    def numbers(self, names: Rows) -> Rows:
        """The numbers of samples, by their names; each is in the alignment."""
        return self._number_of[names].astype(np.int64) if self.mark else names


@dataclass(frozen=True, kw_only=True)
class PairNames:
    """An alignment as the label holder asks by it: its digest, and by party the pair's names."""

    digest: str
    by_party: Mapping[str, Pseudonyms]

    @property
    def marks(self) -> dict[str, str]:
        """By party the mark of the pair's key."""
        return {name: item.mark for name, item in self.by_party.items()}

    @classmethod
    def read(cls, place: Path, holder: str) -> PairNames:
        """From an alignment's directory at the label holder."""
        path = DirectoryStore(party_directory(place, holder)).alignment_path
        alignment = PartyAlignment.load(path)
        others = (name for name in alignment.names if name != holder)
        return cls(
            digest=alignment.digest,
            by_party={
                name: Pseudonyms(kept_key(place, name), alignment.num_samples) for name in others
            },
        )
