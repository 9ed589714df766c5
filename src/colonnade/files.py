"""Files that are there wholly or not at all, and pages with places for what a command writes."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from colonnade.core.errors import ConfigError, StorageError

__all__ = [
    "TEMPORARY",
    "append_wholly",
    "check_place",
    "fill_place",
    "sync",
    "write_atomically",
    "writing_atomically",
]

TEMPORARY = ".writing"

# No room: on the disk, in the owner's share of it, or within the largest file that may be.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomically(path: Path, content: bytes, *, owner_only: bool = False) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part.

    With ``owner_only`` nobody else on the machine may read it.
    """
    with writing_atomically(path, owner_only=owner_only) as file:
        file.write(content)


@contextlib.contextmanager
def writing_atomically(path: Path, *, owner_only: bool = False) -> Iterator[BinaryIO]:
    """A file to write to that takes its name only when the block ends well."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
        mode = 0o600 if owner_only else 0o666
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise


def append_wholly(handle: int, content: bytes, path: Path) -> None:
    """Append to an open file: all of it, or nothing and a StorageError that names the path."""
    size = os.fstat(handle).st_size
    left = content
    try:
        while left:
            # A disk that fills up takes a part first, and gives its reason for the rest.
            left = left[os.write(handle, left) :]
    except OSError as error:
        os.ftruncate(handle, size)
        raise _unwritable(path, error) from error


def sync(handle: int, path: Path) -> None:
    """Have an open file's content outlast a power cut."""
    try:
        os.fsync(handle)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> StorageError:
    remedy = "; make room there, then go on" if error.errno in _FULL else ""
    return StorageError(f"{path}: can't be written: {error.strerror}{remedy}")


def _sync_directory(directory: Path) -> None:
    """Make the new name itself outlast a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_place(page: Path, begin: str, end: str) -> None:
    """Raise ConfigError unless the page is there and has these two lines."""
    if not page.is_file():
        raise ConfigError(f"{page}: no such page")
    text = page.read_text(encoding="utf-8")
    if begin not in text or end not in text.split(begin, 1)[1]:
        raise ConfigError(f"{page}: no place for it; add the lines '{begin}' and '{end}'")


def fill_place(text: str, begin: str, end: str, content: str) -> str:
    """A page's text with this between its two lines."""
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"
