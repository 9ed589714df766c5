"""Alignments as named objects: a participant keeps several, by digest, and every run names its own.

At a party:                 HOME/alignments/DIGEST/{terms.json, alignment.npz}
At the label holder:        FEDERATION/alignments/DIGEST/{terms.json, parties/NAME/alignment.npz}

A party's matching works in HOME/alignment; the outcome is copied when it is whole. A home of an
earlier Colonnade has that one directory, and its alignment counts as kept.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colonnade.align.alignment_file import PartyAlignment
from colonnade.align.ids import PreparedIds
from colonnade.align.participant_files import DirectoryStore
from colonnade.align.terms import AlignSpec
from colonnade.core.errors import DataError, ProtocolError, StorageError
from colonnade.federate.party_sessions import read_terms, write_terms
from colonnade.run.alignment_files import load_alignment
from colonnade.run.storage import party_directory, read_json, write_json

__all__ = [
    "HolderAlignments",
    "KeepingStore",
    "find_alignment",
    "name_alignment",
    "named_alignment",
    "working_place",
]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FILE = "alignment.npz"
_NEW = ".new-"
# In a run's directory: which alignment it has.
_NAMED = "alignment.json"


def working_place(home: Path, lane: int = 0) -> Path:
    """Where a party's matching works; two lanes may match at once."""
    return home / (f"alignment-{lane}" if lane else "alignment")


class KeepingStore(DirectoryStore):
    """A party's files of a matching; the outcome is kept under its digest too."""

    def __init__(self, home: Path, terms: AlignSpec, lane: int = 0) -> None:
        super().__init__(working_place(home, lane))
        self._home, self._terms = home, terms

    def save_alignment(self, alignment: PartyAlignment) -> None:
        """Keep it where the next matching does not overwrite it, then as the newest."""
        place = _place(self._home / "alignments", alignment.digest)
        write_terms(place, self._terms)
        alignment.save(place / _FILE)
        super().save_alignment(alignment)


def find_alignment(home: Path, digest: str, party: str) -> Path:
    """The directory of a party's alignment; ProtocolError if the party has none of this digest."""
    place = _place(home / "alignments", digest)
    if (place / _FILE).exists():
        return place
    earlier = working_place(home)
    if (earlier / _FILE).exists() and PartyAlignment.load(earlier / _FILE).digest == digest:
        return earlier
    raise ProtocolError(
        f"party '{party}' has another alignment than the label holder, and none of digest "
        f"'{digest[:12]}'; align again"
    )


def _place(root: Path, digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise ProtocolError("alignment: 64 hexadecimal digits name one")
    return root / digest


@dataclass(frozen=True, kw_only=True)
class HolderAlignments:
    """The alignments that the label holder keeps, in its federation's directory."""

    root: Path
    holder: str

    def place(self, digest: str) -> Path:
        """The directory of one; StorageError if it is not kept here."""
        place = _place(self.root, digest)
        if not place.is_dir():
            raise StorageError(
                f"{self.root}: no alignment '{digest[:12]}'; put it back, or align again"
            )
        return place

    def begin(self) -> Path:
        """A directory for an alignment that has no digest yet."""
        return self.root / f"{_NEW}{secrets.token_hex(8)}"

    def keep(self, place: Path, terms: AlignSpec) -> str:
        """Name a finished alignment by its digest; gives the digest."""
        path = DirectoryStore(party_directory(place, self.holder)).alignment_path
        digest = PartyAlignment.load(path).digest
        write_terms(place, terms)
        try:
            place.rename(_place(self.root, digest))
        except OSError as error:
            raise StorageError(f"{self.root}: can't be written: {error.strerror}") from error
        return digest

    def fitting(self, ids: PreparedIds, names: tuple[str, ...], terms: AlignSpec) -> Iterator[str]:
        """Digests of alignments of exactly these ids between these names, newest first."""
        for place in sorted(self.root.glob("*/terms.json"), key=_age):
            if place.parent.name.startswith(_NEW):
                continue
            kept = read_terms(place.parent)
            if (kept.salt, kept.agreed) != (terms.salt, terms.agreed):
                continue
            file = party_directory(place.parent, self.holder) / _FILE
            try:
                alignment = load_alignment(file, ids)
            except DataError:
                continue
            if set(names) <= set(alignment.names):
                yield alignment.digest

    def clear(self) -> None:
        """Remove what interrupted alignments left."""
        for place in self.root.glob(f"{_NEW}*"):
            shutil.rmtree(place, ignore_errors=True)


def _age(place: Path) -> float:
    return -place.stat().st_mtime


def name_alignment(run: Path, digest: str) -> None:
    """Note in a run's directory which alignment it has."""
    write_json(run / _NAMED, {"digest": digest})


def named_alignment(run: Path) -> str | None:
    """The digest that ``name_alignment`` noted; None in a run of an earlier Colonnade."""
    if not (run / _NAMED).exists():
        return None
    digest = read_json(run / _NAMED).get("digest")
    if not isinstance(digest, str):
        raise StorageError(f"{run / _NAMED}: damaged: expected a digest")
    return digest
