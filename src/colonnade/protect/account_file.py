"""The file of an account of people: its tables, who may read it, and its errors in words."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from colonnade.core.errors import StorageError

__all__ = ["make_private", "opened", "told_errors", "unusable"]

_WAIT_SECONDS = 60.0
_TABLES = """
CREATE TABLE IF NOT EXISTS charges (
    number INTEGER PRIMARY KEY, name BLOB UNIQUE, head BLOB NOT NULL, people BLOB, cost REAL,
    releases INTEGER NOT NULL, spent REAL NOT NULL, bare INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS people (
    key INTEGER PRIMARY KEY, releases INTEGER NOT NULL, spent REAL NOT NULL, bare INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS basis (
    one INTEGER PRIMARY KEY CHECK (one = 1), secret BLOB NOT NULL, folded INTEGER NOT NULL,
    releases INTEGER NOT NULL, spent REAL NOT NULL, bare INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS missing (head BLOB PRIMARY KEY, seal BLOB NOT NULL);
"""


def opened(path: Path) -> sqlite3.Connection:
    """The account in a file, for one thread at a time; a new one gets a secret of its own."""
    file = sqlite3.connect(
        path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        with _one_at_a_time(path):
            file.execute("PRAGMA journal_mode = WAL")
            # A commit is with the operating system; a checkpoint of the log has it on the disk.
            file.execute("PRAGMA synchronous = NORMAL")
            file.executescript(_TABLES)
            file.execute(
                "INSERT OR IGNORE INTO basis VALUES (1, ?, 0, 0, 0.0, 0)",
                (secrets.token_bytes(32),),
            )
    except sqlite3.Error:
        file.close()
        raise
    return file


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Only one process at a time begins with the file: SQLite changes a new one's mode unguarded.

    Where several do so at once, it tells one of them at once that the file is locked.
    """
    if not path.parent.is_dir() or str(path) == ":memory:":
        yield
        return
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


@contextmanager
def told_errors(path: Path) -> Iterator[None]:
    """Name the file in an error of SQLite."""
    try:
        yield
    except sqlite3.Error as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: sqlite3.Error) -> StorageError:
    """The error of a file that can't be used now."""
    return StorageError(f"{path}: the account can't be read or written: {error}")


def make_private(path: Path) -> None:
    """Make an empty file that only its owner can read, unless it is there.

    Never opened besides once it is there: closing a file lets go of every lock that SQLite holds on
    it in this process, also for another session.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
