"""What each participant keeps of an alignment, each at its own place.

- ``alignment.npz``: its own rows by sample number, the presence table, and the digest that all
  participants compare. Training needs this one only.
- ``secret.npz``: its key and keyed fingerprints of its own ids, for resuming and for extending.
  Whoever has it can test guesses of this participant's ids, so it is readable by its owner only.
- ``record.npz``, at the label holder: what everybody's fully blinded ids were, for extending.
- ``lists/``, at the label holder while an alignment goes on: blinded ids, for resuming.

Every file is written wholly or not at all, and damage to it is found when it is read.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from colonnade.align.group import CHUNK, POINT_BYTES, Bytes, Indices
from colonnade.core.errors import DataError, StorageError
from colonnade.files import write_atomically

__all__ = [
    "TAG_BYTES",
    "DirectoryPlace",
    "HolderRecord",
    "MemoryPlace",
    "PartyAlignment",
    "Place",
    "PointLists",
    "SecretState",
    "check_together",
    "load_record",
    "save_record",
]

# So much of a fully blinded id is enough to compare it: no two differ only after 127 bits.
TAG_BYTES = 16

Table = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class PartyAlignment:
    """One participant's alignment: its own rows, and which sample is at which participant.

    Row ``rows[i]`` of its own table is sample ``numbers[i]``; numbers ascend. ``presence`` has a
    row per sample and a column per name. Two alignments belong together if their digests are
    equal.
    """

    participant: str
    names: tuple[str, ...]
    label_holder: str
    mode: str
    run: str
    round: int
    num_samples: int
    numbers: Indices
    rows: Indices
    presence: Table
    digest: str

    def row_of_sample(self) -> Indices:
        """The own row of every sample; -1 where it is not here."""
        found = np.full(self.num_samples, -1, dtype=np.int64)
        found[self.numbers] = self.rows
        return found

    def save(self, path: Path) -> None:
        """Write it."""
        meta = {
            key: getattr(self, key)
            for key in ("participant", "names", "label_holder", "mode", "run", "round")
        }
        meta |= {"num_samples": self.num_samples, "digest": self.digest}
        _write(path, meta, {"numbers": self.numbers, "rows": self.rows, "presence": self.presence})

    @classmethod
    def load(cls, path: Path) -> PartyAlignment:
        """Read it; a damaged file is refused."""
        meta, arrays = _read(path, "alignment")
        meta["names"] = tuple(meta["names"])
        return cls(**meta, **arrays)


def check_together(digests: Mapping[str, str]) -> None:
    """Refuse alignments that do not come from the same run: their sample numbers differ."""
    if len(set(digests.values())) > 1:
        listed = ", ".join(f"'{name}' {digest[:12]}" for name, digest in sorted(digests.items()))
        raise DataError(
            f"these alignments don't belong together (digests: {listed}); align again, or take "
            "the files of one and the same alignment"
        )


@dataclass(kw_only=True)
class SecretState:
    """A participant's own side of an alignment, over all its rounds.

    Ids that it has sent are entries 0, 1, ... in the order of their rounds; ``ends`` says how
    many there were after each round, ``passed`` how long the label holder's list was.
    """

    run: str
    secret: bytes = field(repr=False)
    round: int = 0
    finished: bool = False
    ends: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    prints: Bytes = field(default_factory=lambda: np.zeros((0, TAG_BYTES), np.uint8), repr=False)
    numbers: Indices = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    digest: str = ""

    def copy(self) -> SecretState:
        """One that may go its own way."""
        return replace(self, ends=[*self.ends], passed=[*self.passed], numbers=self.numbers.copy())


class Place(Protocol):
    """Where a participant keeps its own files."""

    def load_state(self) -> SecretState | None:
        """Its side of the last alignment, finished or not."""

    def save_state(self, state: SecretState) -> None:
        """Keep it."""

    def save_alignment(self, alignment: PartyAlignment) -> None:
        """Keep the outcome."""

    def load_days(self) -> list[int]:
        """The days on which alignments began here."""

    def save_days(self, days: Sequence[int]) -> None:
        """Keep them."""


class MemoryPlace:
    """A participant's place in memory: gone with the process."""

    def __init__(self) -> None:
        self.state: SecretState | None = None
        self.alignment: PartyAlignment | None = None
        self.days: list[int] = []

    def load_state(self) -> SecretState | None:
        """Its side of the last alignment, finished or not."""
        return None if self.state is None else self.state.copy()

    def save_state(self, state: SecretState) -> None:
        """Keep it."""
        self.state = state.copy()

    def save_alignment(self, alignment: PartyAlignment) -> None:
        """Keep the outcome."""
        self.alignment = alignment

    def load_days(self) -> list[int]:
        """The days on which alignments began here."""
        return list(self.days)

    def save_days(self, days: Sequence[int]) -> None:
        """Keep them."""
        self.days = list(days)


class DirectoryPlace:
    """A participant's place on its own disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def alignment_path(self) -> Path:
        """The outcome."""
        return self.directory / "alignment.npz"

    def load_state(self) -> SecretState | None:
        """Its side of the last alignment, finished or not."""
        path = self.directory / "secret.npz"
        if not path.exists():
            return None
        meta, arrays = _read(path, "secret")
        meta["secret"] = arrays.pop("secret").tobytes()
        return SecretState(**meta, **arrays)

    def save_state(self, state: SecretState) -> None:
        """Keep it, for its owner only."""
        meta = {
            key: getattr(state, key)
            for key in ("run", "round", "finished", "ends", "passed", "digest")
        }
        secret = np.frombuffer(state.secret, dtype=np.uint8)
        arrays = {"secret": secret, "prints": state.prints, "numbers": state.numbers}
        _write(self.directory / "secret.npz", meta, arrays)

    def save_alignment(self, alignment: PartyAlignment) -> None:
        """Keep the outcome."""
        alignment.save(self.alignment_path)

    def load_days(self) -> list[int]:
        """The days on which alignments began here."""
        path = self.directory / "days.npz"
        return _read(path, "count of alignments")[1]["days"].tolist() if path.exists() else []

    def save_days(self, days: Sequence[int]) -> None:
        """Keep them."""
        _write(self.directory / "days.npz", {}, {"days": np.array(days, dtype=np.int64)})


@dataclass(kw_only=True)
class HolderRecord:
    """What the label holder keeps so that a later alignment can extend this one.

    Per participant, over all rounds: a tag of every fully blinded id in the order in which the
    lists came back, its sample number (-1 for none), and where each round ended.
    """

    run: str
    round: int
    names: tuple[str, ...]
    label_holder: str
    num_samples: int
    tags: dict[str, Bytes]
    numbers: dict[str, Indices]
    ends: dict[str, list[int]]


def save_record(record: HolderRecord, path: Path) -> None:
    """Write the label holder's record."""
    meta = {
        key: getattr(record, key)
        for key in ("run", "round", "names", "label_holder", "num_samples", "ends")
    }
    arrays: dict[str, Any] = {
        f"tags {place}": record.tags[name] for place, name in enumerate(record.names)
    }
    arrays |= {f"numbers {place}": record.numbers[name] for place, name in enumerate(record.names)}
    _write(path, meta, arrays)


def load_record(path: Path) -> HolderRecord:
    """Read the label holder's record."""
    meta, arrays = _read(path, "record")
    names = meta["names"] = tuple(meta["names"])
    tags = {name: arrays[f"tags {place}"] for place, name in enumerate(names)}
    numbers = {name: arrays[f"numbers {place}"] for place, name in enumerate(names)}
    return HolderRecord(**meta, tags=tags, numbers=numbers)


class PointLists:
    """Everybody's list as it comes back from each hop; in memory, or on disk to resume from.

    In memory, a hop overwrites the one before it, so that a list takes 32 bytes per id.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._places: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._arrays: dict[str, Bytes] = {}
        self._done: dict[tuple[str, int], int] = {}

    def begin(self, run: str, round_number: int, sizes: Mapping[str, int], *, resume: bool) -> None:
        """Make room; with ``resume``, keep what is there."""
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
        """How many points of a list a hop has given back so far, in whole chunks."""
        if self._directory is None:
            return self._done.get((owner, hop), 0)
        path = self._path(owner, hop)
        done = path.stat().st_size // POINT_BYTES if path.exists() else 0
        return done if done == self._sizes[owner] else done - done % CHUNK

    def read(self, owner: str, hop: int, start: int, count: int) -> Bytes:
        """Some points of a list after a hop."""
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
        """Let go of what is in memory."""
        self._arrays, self._done = {}, {}

    def clear(self) -> None:
        """The alignment is finished."""
        self.forget()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _path(self, owner: str, hop: int) -> Path:
        assert self._directory is not None
        # A party's name may hold any sign; its place may not.
        return self._directory / f"list-{self._places[owner]}-{hop}.points"


def _write(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    held = io.BytesIO()
    np.savez(held, meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8), **arrays)
    write_atomically(path, held.getvalue(), owner_only=True)


def _read(path: Path, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``_write`` wrote; a zip file has checksums, so damage is found."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        meta: dict[str, Any] = json.loads(arrays.pop("meta").tobytes())
    except FileNotFoundError as error:
        raise StorageError(f"{path}: no such file; run colonnade align first") from error
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        raise StorageError(f"{path}: damaged {what} ({error}); align again") from error
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error
    return meta, arrays
