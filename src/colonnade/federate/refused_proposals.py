"""Proposals that a party refused before it took any part in the run: one log of bounded size.

A run that a party has no part in has no directory here. Otherwise a label holder could have as many
made as it can think of names. HOME/refused.jsonl has the newest refusals, and the file of those
before them is kept once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from colonnade.core.errors import StorageError
from colonnade.files import append_wholly, locked

__all__ = ["note_refused_proposal", "refused_proposals"]

_FILE, _BEFORE = "refused.jsonl", "refused-before.jsonl"
_MOST_BYTES, _MOST_CHARACTERS = 1_000_000, 1_000


def note_refused_proposal(home: Path, *, run: str, verb: str, reason: str) -> None:
    """Add one refusal to the log in a party's directory.

    Args:
        home: The party's directory.
        run: The run as it was named.
        verb: What was asked.
        reason: Why it was refused; its beginning is kept.

    Raises:
        StorageError: It can't be written.
    """
    path = home / _FILE
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"time": now, "run": run, "verb": verb, "reason": reason[:_MOST_CHARACTERS]}
    line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
    with locked(home / f".{_FILE}.lock"):
        try:
            if path.exists() and path.stat().st_size + len(line) > _MOST_BYTES:
                path.replace(home / _BEFORE)
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(f"{path}: can't be written: {error.strerror}") from error
        try:
            append_wholly(file, line, path)
        finally:
            os.close(file)


def refused_proposals(home: Path) -> Iterator[dict[str, Any]]:
    """The refusals in the log, oldest first; a line that was not finished is left out."""
    for name in (_BEFORE, _FILE):
        path = home / name
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if line.endswith(b"\n"):
                yield json.loads(line)
