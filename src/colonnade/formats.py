"""Which format a directory has: a run's, a party's or a federation's.

``format.json`` says ``{"kind": ..., "format": ..., "written_by": ...}``. Format 1 had no such file.
Whoever opens a directory checks its format first. Migration is in ``run.migration``; the rules are
in ``docs/compatibility.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from colonnade.core.errors import StorageError
from colonnade.files import write_atomically

__all__ = [
    "FEDERATION",
    "FORMAT",
    "KINDS",
    "PARTY",
    "RUN",
    "DirectoryKind",
    "check_format",
    "format_of",
    "kind_of",
    "write_format",
]

FORMAT = "format.json"


@dataclass(frozen=True, kw_only=True)
class DirectoryKind:
    """A kind of directory: the file that every one has, and the formats that are known.

    ``newest`` is written. From ``oldest`` on, a directory is read as it is; older ones need
    ``colonnade migrate``. Only its owner may read the files of a private one.
    """

    name: str
    mark: str
    newest: int
    oldest: int
    is_private: bool = False


RUN = DirectoryKind(name="run", mark="config.json", newest=2, oldest=2)
PARTY = DirectoryKind(name="party", mark="party.toml", newest=2, oldest=2, is_private=True)
# Only format.json is new in format 2.
FEDERATION = DirectoryKind(name="federation", mark="federation.toml", newest=2, oldest=1)
KINDS = (RUN, PARTY, FEDERATION)


def write_format(directory: Path, kind: DirectoryKind) -> None:
    """Note the newest format; write this file before the kind's mark, so that it is never missing.

    Raises StorageError if it can't be written.
    """
    said = {"kind": kind.name, "format": kind.newest, "written_by": version("colonnade")}
    content = (json.dumps(said, indent=2) + "\n").encode()
    write_atomically(directory / FORMAT, content, owner_only=kind.is_private)


def format_of(directory: Path, kind: DirectoryKind) -> int:
    """The format of a directory of this kind; 1 if it does not say.

    Raises StorageError if the directory is of another kind, if a newer Colonnade wrote it, or if
    its format.json is damaged.
    """
    path = directory / FORMAT
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        name, number, writer = said["kind"], said["format"], said["written_by"]
    except FileNotFoundError:
        return 1
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path}: damaged: {type(error).__name__}: {error}") from error
    if name != kind.name:
        raise StorageError(f"{directory}: a directory of kind '{name}', expected '{kind.name}'")
    if type(number) is not int or number < 1:
        raise StorageError(f"{path}: damaged: format {number!r}, expected a number from 1 on")
    if number > kind.newest:
        raise StorageError(
            f"{directory}: written by a newer Colonnade, {writer} (format {number}; this one knows "
            f"{kind.newest}); upgrade Colonnade"
        )
    return number


def check_format(directory: Path, kind: DirectoryKind) -> None:
    """Raise StorageError, with the remedy, unless this Colonnade reads the directory as it is."""
    number = format_of(directory, kind)
    if number < kind.oldest:
        raise StorageError(
            f"{directory}: a {kind.name} of format {number}, expected format {kind.newest}; bring "
            f"it up to date with: colonnade migrate {directory}"
        )


def kind_of(directory: Path) -> DirectoryKind:
    """The kind of a directory, by its mark; StorageError if it is none that is known."""
    for kind in KINDS:
        if (directory / kind.mark).is_file():
            return kind
    marks = ", ".join(kind.mark for kind in KINDS)
    raise StorageError(
        f"{directory}: no run, party or federation here (none of {marks}); name its directory"
    )
