"""Files that are there wholly or not at all, and pages with places for what a command writes."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from colonnade.core.errors import ConfigError, StorageError

__all__ = [
    "TEMPORARY",
    "check_place",
    "fill_place",
    "write_atomically",
    "writing_atomically",
]

TEMPORARY = ".writing"


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
            raise StorageError(f"{path}: can't be written: {error.strerror}") from error
        raise


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
