"""A participant's own files of an alignment, in memory or on its disk.

- ``alignment.npz``: the outcome (``alignment_file``).
- ``secret.npz`` and ``prints.npz``: its key, and keyed fingerprints of its own ids, for resuming
  and extending. Both together allow to test guesses of this participant's ids, so only their
  owner may read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from colonnade.align.alignment_file import PartyAlignment
from colonnade.align.archives import read_archive, write_archive
from colonnade.align.group import Bytes, Numbers
from colonnade.align.sealing import TAG_BYTES
from colonnade.core.errors import StorageError

__all__ = ["DirectoryStore", "MemoryStore", "SecretState", "Store"]


@dataclass(kw_only=True)
class SecretState:
    """A participant's own side of an alignment, over all its rounds.

    Ids that it has sent are entries 0, 1, ... in the order of their rounds. ``ends`` are the
    numbers of entries after each round, ``passed`` the lengths of the label holder's lists.
    ``numbers`` are the entries' sample numbers, -1 where there is none.
    """

    run: str
    secret: bytes = field(repr=False)
    round: int = 0
    finished: bool = False
    ends: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    numbers: Numbers = field(default_factory=lambda: np.zeros(0, np.int32), repr=False)
    digest: str = ""

    def copy(self) -> SecretState:
        """A copy with lists and arrays of its own."""
        return replace(self, ends=[*self.ends], passed=[*self.passed], numbers=self.numbers.copy())


class Store(Protocol):
    """A participant's own files of an alignment."""

    def load_state(self) -> SecretState | None:
        """Its side of the last alignment, finished or not."""

    def save_state(self, state: SecretState) -> None:
        """Keep a participant's side of an alignment."""

    def load_prints(self, state: SecretState) -> Bytes:
        """Fingerprints of the ids that were sent in a state's rounds, under its secret."""

    def save_prints(self, state: SecretState, prints: Bytes) -> None:
        """Keep fingerprints; they are needed once a round, so they stay out of memory."""

    def save_alignment(self, alignment: PartyAlignment) -> None:
        """Keep the outcome."""


class MemoryStore(Store):
    """A participant's files in memory, which end with the process."""

    def __init__(self) -> None:
        self.state: SecretState | None = None
        self.alignment: PartyAlignment | None = None
        self._prints: tuple[str, Bytes] | None = None

    def load_state(self) -> SecretState | None:
        return None if self.state is None else self.state.copy()

    def save_state(self, state: SecretState) -> None:
        self.state = state.copy()

    def load_prints(self, state: SecretState) -> Bytes:
        return _prints_of(state, self._prints)

    def save_prints(self, state: SecretState, prints: Bytes) -> None:
        self._prints = (state.run, prints)

    def save_alignment(self, alignment: PartyAlignment) -> None:
        self.alignment = alignment


class DirectoryStore(Store):
    """A participant's files on its own disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def alignment_path(self) -> Path:
        """The outcome's file."""
        return self.directory / "alignment.npz"

    def load_state(self) -> SecretState | None:
        path = self.directory / "secret.npz"
        if not path.exists():
            return None
        meta, arrays = read_archive(path, "secret")
        meta["secret"] = arrays.pop("secret").tobytes()
        return SecretState(**meta, **arrays)

    def save_state(self, state: SecretState) -> None:
        kept = ("run", "round", "finished", "ends", "passed", "digest")
        meta = {key: getattr(state, key) for key in kept}
        secret = np.frombuffer(state.secret, dtype=np.uint8)
        arrays = {"secret": secret, "numbers": state.numbers}
        write_archive(self.directory / "secret.npz", meta, arrays)

    def load_prints(self, state: SecretState) -> Bytes:
        path = self.directory / "prints.npz"
        if not path.exists():
            return _prints_of(state, None)
        meta, arrays = read_archive(path, "fingerprints")
        return _prints_of(state, (meta["run"], arrays["prints"]))

    def save_prints(self, state: SecretState, prints: Bytes) -> None:
        write_archive(self.directory / "prints.npz", {"run": state.run}, {"prints": prints})

    def save_alignment(self, alignment: PartyAlignment) -> None:
        alignment.save(self.alignment_path)


def _prints_of(state: SecretState, kept: tuple[str, Bytes] | None) -> Bytes:
    """The fingerprints of a state's rounds; an interrupted round may have left more."""
    num_sent = state.ends[-1] if state.ends else 0
    run, prints = kept or ("", np.zeros((0, TAG_BYTES), np.uint8))
    if num_sent and (run != state.run or len(prints) < num_sent):
        raise StorageError("the fingerprints of the earlier alignment are gone; align anew")
    return prints[:num_sent]
