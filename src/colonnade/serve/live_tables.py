"""Parties' tables by id, from files that are read again when they change.

A thread looks at every file's date, size and number once in a while; requests never wait for a
file. A file that is gone or can't be read puts its party away until the file is whole again: old
rows are not served in its place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from colonnade.core.errors import ColonnadeError
from colonnade.data.blocks import Block, read_block
from colonnade.files import file_mark

__all__ = ["LOOK_SECONDS", "LiveTables", "TableFile"]

_LOG = logging.getLogger("colonnade.serve")
LOOK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """A party's file, and its column of ids."""

    path: Path
    id_column: str


class LiveTables:
    """Tables that listeners are told of: at once, and after every change.

    Args:
        files: By party.
        look_seconds: How often to look.
    """

    def __init__(
        self, files: Mapping[str, TableFile], *, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._files = dict(files)
        self._look_seconds = look_seconds
        self._seen: dict[str, tuple[int, int, int] | None] = {}
        self._blocks: dict[str, Block | str] = {}
        self._listeners: list[Callable[[str, Block | str], None]] = []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def read_all(self) -> None:
        """Read every file.

        Raises:
            DataError: One can't be used: better told when a service starts than later.
        """
        for name, file in self._files.items():
            self._seen[name] = file_mark(file.path)
            self._blocks[name] = read_block(name, file.path, id_column=file.id_column)

    def listen(self, listener: Callable[[str, Block | str], None]) -> None:
        """Tell somebody every party's table now, and each change: a block, or why there is none."""
        with self._lock:
            for name, block in self._blocks.items():
                listener(name, block)
            self._listeners.append(listener)

    def stop_telling(self, listener: Callable[[str, Block | str], None]) -> None:
        """Tell somebody no more."""
        with self._lock:
            self._listeners.remove(listener)

    def look(self) -> tuple[str, ...]:
        """Read the files that changed; which parties' they were."""
        with self._lock:
            changed = []
            for name, file in self._files.items():
                mark = file_mark(file.path)
                if mark == self._seen.get(name):
                    continue
                changed.append(name)
                self._seen[name] = mark
                self._blocks[name] = self._read(name, file)
                for listener in self._listeners:
                    listener(name, self._blocks[name])
            return tuple(changed)

    def _read(self, name: str, file: TableFile) -> Block | str:
        try:
            block = read_block(name, file.path, id_column=file.id_column)
        except ColonnadeError as error:
            _LOG.error("party '%s': its table can't be used: %s", name, error.told())
            return "its table can't be read"
        _LOG.info("party '%s': its table was read again, %d rows", name, len(block.ids))
        return block

    def start(self) -> None:
        """Look from now on, in a thread."""
        self._thread = threading.Thread(target=self._watch, name="tables", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(self._look_seconds):
            self.look()
