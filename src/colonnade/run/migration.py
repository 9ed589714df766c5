"""Brings directories of older formats to the newest: runs, parties' homes and federations.

A step takes a directory of format n and gives the files that are different in format n + 1. It
changes nothing itself. Every step must also take a directory where some of those files are new
already: a migration that was killed is then finished by starting it again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from colonnade.files import write_atomically
from colonnade.formats import (
    FEDERATION,
    FORMAT,
    PARTY,
    RUN,
    DirectoryKind,
    format_of,
    kind_of,
    write_format,
)
from colonnade.run.migration_to_2 import party_step, run_step
from colonnade.run.storage import lock_or_refuse

__all__ = ["STEPS", "migrate"]

Step = Callable[[Path], Mapping[Path, bytes]]


def _only_format_json(root: Path) -> Mapping[Path, bytes]:
    """From 1 to 2: format.json is new."""
    return {}


# By kind, the step from each format to the next.
STEPS: Mapping[str, Mapping[int, Step]] = {
    RUN.name: {1: run_step},
    PARTY.name: {1: party_step},
    FEDERATION.name: {1: _only_format_json},
}


def migrate(directory: Path) -> tuple[DirectoryKind, int, list[Path]]:
    """Bring a directory to the newest format of its kind.

    Returns the kind, the format that the directory had, and the files that were written; none if
    it had the newest format. Readers refuse the directory until all files are written, because
    format.json comes last. Raises StorageError if the directory is of no known kind, is in use, or
    was written by a newer Colonnade.
    """
    kind = kind_of(directory)
    written: dict[Path, None] = {}
    with contextlib.ExitStack() as held:
        if kind is RUN:
            held.callback(os.close, lock_or_refuse(directory))
        before = format_of(directory, kind)
        for number in range(before, kind.newest):
            for path, content in STEPS[kind.name][number](directory).items():
                owner_only = path.exists() and not path.stat().st_mode & 0o077
                write_atomically(path, content, owner_only=owner_only)
                written[path] = None
        if before < kind.newest:
            write_format(directory, kind)
            written[directory / FORMAT] = None
    return kind, before, list(written)
