"""The ledger: an append-only, hash-chained record of everything that left a party.

One JSON object per line. A line's hash covers the line before it and every byte of its own, so that
a changed, removed, added or swapped line shows. What a chain can't show by itself is a missing
tail: the number of entries and the last hash are therefore kept apart as well, in a seal beside
the ledger and in the run's checkpoint.json, at every checkpoint and at the end. Entries after the
last seal can be cut off unseen; and whoever can rewrite ledger, seal and checkpoint.json alike can
rewrite history. An entry is with the operating system before what it tells of leaves the party; it
is on the disk for certain from the next seal on. Sessions and processes that write to one ledger at
the same time take turns: each takes up what the others wrote before it adds its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from colonnade.core.errors import Refused, StorageError
from colonnade.core.protection import Notes
from colonnade.files import append_wholly, sync, write_atomically

__all__ = ["MISSING", "Ledger", "LedgerFault", "ledger_hashes", "read_ledger", "verify_ledger"]

_START = "0" * 64
_END = re.compile(rb',"hash":"([0-9a-f]{64})"\}$')
_SEAL = "ledger.seal.json"
_FILE = "ledger.jsonl"
# So many refusals are written down in one ledger: whoever is refused can ask again and again.
_MOST_REFUSALS, _MOST_CHARACTERS = 10_000, 1_000
_REFUSED = b'"event":"refused"'
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# Beside a ledger: what somebody has a seal of, and is not in it.
MISSING = "ledger.missing.json"


class LedgerFault(NamedTuple):
    """Where a ledger is not as it was written, and what is wrong there."""

    entry: int
    what: str


class Ledger(Notes):
    """A party's own, open for appending; safe from threads, sessions and processes.

    Args:
        directory: Where it is.
        run: The run that its entries name.
        party: Whose it is, for a refusal.
        most_bytes: At this size nothing more is written, and so nothing more leaves.
    """

    def __init__(
        self, directory: Path, *, run: str, party: str = "", most_bytes: int | None = None
    ) -> None:
        self._path = directory / _FILE
        self._seal = directory / _SEAL
        self._run, self._party, self._most_bytes = run, party, most_bytes
        self._turn = threading.Lock()
        # Up to where the file is known: bytes, entries, the last hash.
        self._size, self._count, self._head = 0, 0, _START
        self._num_refusals = 0
        self._file = -1
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageError(f"{self._path}: can't be written: {error.strerror}") from error
        with self._alone():
            pass

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one entry; a ledger that was closed belongs to a run that is over, and stays.

        Of refusals it has the first ten thousand.

        Raises:
            Refused: It is as long as it may be.
        """
        if self._file < 0:
            return
        with self._alone():
            if entry.get("event") == "refused":
                if self._num_refusals < _MOST_REFUSALS:
                    self._num_refusals += 1
                    self._write({**entry, "reason": entry["reason"][:_MOST_CHARACTERS]})
                return
            if self._most_bytes is not None and self._size >= self._most_bytes:
                raise Refused(
                    f"party '{self._party}' refuses by its policy, rule "
                    f"'limits.max_ledger_megabytes': its ledger of this run has {self._size:,} "
                    "bytes; begin another run, or have the limit raised there",
                    party=self._party,
                )
            self._write(entry)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else writes meanwhile; the system ends the turn of a process that is killed."""
        with self._turn:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                self._catch_up()
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _write(self, entry: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        body = _ENCODER.encode(
            {"entry": self._count, "time": now, "run": self._run, **entry}
        ).encode()
        head = _hash(self._head, body)
        line = body[:-1] + f',"hash":"{head}"}}\n'.encode()
        # If it can't be written, nothing leaves the party either.
        append_wholly(self._file, line, self._path, size=self._size)
        self._size, self._count, self._head = self._size + len(line), self._count + 1, head

    def _catch_up(self) -> None:
        """Take up what others have written since; a line that was not finished never counted."""
        size = os.fstat(self._file).st_size
        if size == self._size:
            return
        if size < self._size:
            self._size, self._count, self._head = 0, 0, _START
            self._num_refusals = 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(self._size)
            whole, _, torn = file.read().rpartition(b"\n")
        if whole:
            *_, last = lines = whole.split(b"\n")
            end = _END.search(last)
            if end is None:
                raise StorageError(
                    f"{self._path}: damaged in its last line; see 'colonnade ledger'"
                )
            self._count, self._head = self._count + len(lines), end[1].decode()
            self._num_refusals += whole.count(_REFUSED)
        self._size = size - len(torn)
        if torn:
            os.ftruncate(self._file, self._size)
            self._write({"event": "recovered", "dropped_bytes": len(torn)})

    def entries(self) -> Iterator[dict[str, Any]]:
        """What is in it so far."""
        return read_ledger(self._path.parent)

    def seal(self) -> dict[str, Any]:
        """Have everything on the disk, and note apart how many entries there are."""
        with self._alone():
            sync(self._file, self._path)
            sealed = {"entries": self._count, "head": self._head}
            write_atomically(self._seal, (json.dumps(sealed) + "\n").encode())
        return sealed

    def confirm(self, num_entries: int, head: str, *, party: str) -> None:
        """Raise Refused unless so many entries were here once, and ended with this hash.

        What is missing may have been acknowledged: then an entry says so.
        """
        ends = ledger_hashes(self._path.parent)
        if num_entries == 0 or (num_entries <= len(ends) and ends[num_entries - 1] == head):
            return
        told = {"entries": num_entries, "head": head}
        if any(
            entry.get("event") == "acknowledged" and entry.get("missing") == told
            for entry in self.entries()
        ):
            return
        write_atomically(self._path.with_name(MISSING), json.dumps(told).encode())
        raise Refused(
            f"party '{party}' refuses, rule 'ledger': its ledger of this run has {len(ends)} "
            f"entries and is not the one of {num_entries} that the label holder has a seal of: an "
            "earlier copy was put back; put the newest copy back, or take note of it at the party "
            "by 'colonnade party budget HOME --acknowledge'",
            party=party,
        )

    def acknowledge(self) -> bool:
        """Take it that entries are missing, and write that down; False if nobody said so."""
        path = self._path.with_name(MISSING)
        if not path.exists():
            return False
        self.append({"event": "acknowledged", "missing": json.loads(path.read_bytes())})
        self.seal()
        path.unlink()
        return True

    def close(self) -> None:
        """Let go of the file."""
        with self._turn:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __del__(self) -> None:
        self.close()


def ledger_hashes(directory: Path) -> list[str]:
    """The hash of every entry, in order; none where there is no ledger."""
    path = directory / _FILE
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [end[1].decode() for line in lines if (end := _END.search(line))]


def read_ledger(directory: Path) -> Iterator[dict[str, Any]]:
    """The entries of a party's ledger."""
    path = directory / _FILE
    if not path.exists():
        raise StorageError(f"{path}: no such ledger")
    for number, line in enumerate(path.read_bytes().split(b"\n")):
        if line:
            try:
                yield json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise StorageError(f"{path}, line {number + 1}: damaged: {error}") from error


def verify_ledger(
    directory: Path, anchors: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[int, LedgerFault | None]:
    """How many entries hold, and the first fault.

    ``anchors`` are counts and heads that were kept elsewhere, by where.
    """
    path = directory / _FILE
    if not path.exists():
        raise StorageError(f"{path}: no such ledger")
    content = path.read_bytes()
    heads = [_START]
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines):
        end = _END.search(line)
        if end is None:
            return number, LedgerFault(number, "the line is not as an entry is written")
        body = line[: end.start()] + b"}"
        head = _hash(heads[-1], body)
        if head != end[1].decode():
            return number, LedgerFault(number, "the hash does not fit this line and those before")
        heads.append(head)
    if rest:
        return len(lines), LedgerFault(len(lines), "the last line is not finished")
    for where, anchor in {**_own_seal(directory), **(anchors or {})}.items():
        count = anchor.get("entries", -1)
        if not isinstance(count, int) or not 0 <= count < len(heads):
            fault = f"{where} knows of {count} entries, {len(lines)} are here: the end is missing"
            return len(lines), LedgerFault(len(lines), fault)
        if heads[count] != anchor.get("head"):
            return 0, LedgerFault(
                count - 1, f"{where} knows another hash of entry {count - 1}: it was rewritten"
            )
    return len(lines), None


def _own_seal(directory: Path) -> dict[str, dict[str, Any]]:
    path = directory / _SEAL
    if not path.exists():
        return {}
    try:
        seal = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        seal = {}
    return {_SEAL: seal if isinstance(seal, dict) else {}}


def _hash(previous: str, body: bytes) -> str:
    return hashlib.sha256(previous.encode() + body).hexdigest()
