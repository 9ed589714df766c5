"""Everybody's blinded list, kept by the label holder during an alignment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.align.group import CHUNK, POINT_BYTES, Bytes
from colonnade.core.errors import StorageError
from colonnade.files import write_atomically

__all__ = ["PointLists"]


class PointLists:
    """Everybody's list after each hop: in memory, or on disk to resume from.

    In memory, a hop overwrites the one before it, so that a list takes 32 bytes per id.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._places: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._arrays: dict[str, Bytes] = {}
        self._done: dict[tuple[str, int], int] = {}

    def begin(self, run: str, round_number: int, sizes: Mapping[str, int], *, resume: bool) -> None:
        """Begin a round's lists; with ``resume``, keep those on disk."""
        self._done = {}
        self._sizes = dict(sizes)
        self._places = {name: place for place, name in enumerate(sizes)}
        directory = self._directory
        if directory is None:
            self._arrays = {name: np.zeros((n, POINT_BYTES), np.uint8) for name, n in sizes.items()}
            return
        if not resume:
            shutil.rmtree(directory, ignore_errors=True)
        content = {"run": run, "round": round_number, "sizes": dict(sizes)}
        if resume and self.unfinished() != content:
            raise StorageError(f"{directory}: the lists' lengths have changed; align anew")
        write_atomically(directory / "run.json", json.dumps(content).encode(), owner_only=True)

    def unfinished(self) -> dict[str, Any] | None:
        """Run, round and lengths of an alignment that was interrupted, if there is one."""
        if self._directory is None or not (self._directory / "run.json").exists():
            return None
        content: dict[str, Any] = json.loads((self._directory / "run.json").read_text("utf-8"))
        return content

    def num_done(self, owner: str, hop: int) -> int:
        """The number of points of a list that a hop has given back so far, in whole chunks."""
        if self._directory is None:
            return self._done.get((owner, hop), 0)
        path = self._path(owner, hop)
        done = path.stat().st_size // POINT_BYTES if path.exists() else 0
        return done if done == self._sizes[owner] else done - done % CHUNK

    def read(self, owner: str, hop: int, start: int, count: int) -> Bytes:
        """``count`` points of a list after a hop."""
        if self._directory is None:
            return self._arrays[owner][start : start + count]
        with self._path(owner, hop).open("rb") as file:
            file.seek(start * POINT_BYTES)
            raw = file.read(count * POINT_BYTES)
        return np.frombuffer(raw, dtype=np.uint8).reshape(-1, POINT_BYTES)

    def append(self, owner: str, hop: int, points: Bytes) -> None:
        """The next points of a list after a hop."""
        start = self.num_done(owner, hop)
        if self._directory is None:
            self._arrays[owner][start : start + len(points)] = points
            self._done[owner, hop] = start + len(points)
            return
        path = self._path(owner, hop)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.truncate(start * POINT_BYTES)
            file.seek(start * POINT_BYTES)
            file.write(points.tobytes())

    def forget(self) -> None:
        """Free the memory; files stay."""
        self._arrays, self._done = {}, {}

    def clear(self) -> None:
        """Remove everything: the alignment is finished."""
        self.forget()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _path(self, owner: str, hop: int) -> Path:
        assert self._directory is not None
        # By number: a party's name may hold characters that a file's name may not.
        return self._directory / f"list-{self._places[owner]}-{hop}.points"
