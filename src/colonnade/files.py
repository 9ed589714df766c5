"""Atomic writes, and pages with marked places that a command fills.

Nothing here knows the content: formats of runs and federations are in ``run`` and ``federate``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
    "file_mark",
    "fill_place",
    "locked",
    "sync",
    "write_atomically",
    "writing_atomically",
]

TEMPORARY = ".writing"

# The disk is full, or a quota, or the limit on the size of a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomically(path: Path, content: bytes, *, owner_only: bool = False) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part.

    With ``owner_only`` nobody else on the machine may read it.
    """
    with writing_atomically(path, owner_only=owner_only) as file:
        file.write(content)


@contextlib.contextmanager
def writing_atomically(path: Path, *, owner_only: bool = False) -> Iterator[BinaryIO]:
    """Open a file for writing; it gets its name only if the block ends without an error."""
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


@contextlib.contextmanager
def locked(lock: Path, remedy: str = "") -> Iterator[None]:
    """Hold a lock file: one process or thread at a time; waits for the one that holds it."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(f"{lock}: can't be written: {error.strerror}{remedy}") from error
    try:
        # The system releases the lock when the process ends, however it ends.
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def file_mark(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def append_wholly(handle: int, content: bytes, path: Path, *, size: int | None = None) -> None:
    """Append to an open file: all of it, or nothing and a StorageError that names the path.

    ``size`` is how long the file is, of whoever knows.
    """
    if size is None:
        size = os.fstat(handle).st_size
    left = content
    try:
        while left:
            # A full disk accepts a part first and reports its error for the rest.
            left = left[os.write(handle, left) :]
    except OSError as error:
        os.ftruncate(handle, size)
        raise _unwritable(path, error) from error


def sync(handle: int, path: Path) -> None:
    """Write an open file's content through to the disk, so that a power cut can't lose it."""
    try:
        os.fsync(handle)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> StorageError:
    remedy = "; make room there, then go on" if error.errno in _FULL else ""
    return StorageError(f"{path}: can't be written: {error.strerror}{remedy}")


def _sync_directory(directory: Path) -> None:
    """Write the new name through to the disk as well."""
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
    """The text of a page, with the content between its two lines."""
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"
