"""What a participant keeps of an alignment for later, and its place: memory or its own disk.

- ``alignment.npz``: the outcome (``files``).
- ``secret.npz``: its key and keyed fingerprints of its own ids, for resuming and for extending.
  Whoever has it can test guesses of this participant's ids, so it is readable by its owner only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from colonnade.align.archives import read_archive, write_archive
from colonnade.align.files import PartyAlignment
from colonnade.align.group import Bytes, Numbers
from colonnade.align.sealing import TAG_BYTES

__all__ = ["DirectoryPlace", "MemoryPlace", "Place", "SecretState"]


@dataclass(kw_only=True)
class SecretState:
    """A participant's own side of an alignment, over all its rounds.

    Ids that it has sent are entries 0, 1, ... in the order of their rounds; ``ends`` says how
    many there were after each round, ``passed`` how long the label holder's list was. ``numbers``
    are the entries' sample numbers, -1 where there is none.
    """

    run: str
    secret: bytes = field(repr=False)
    round: int = 0
    finished: bool = False
    ends: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    prints: Bytes = field(default_factory=lambda: np.zeros((0, TAG_BYTES), np.uint8), repr=False)
    numbers: Numbers = field(default_factory=lambda: np.zeros(0, np.int32), repr=False)
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


class MemoryPlace:
    """A participant's place in memory: gone with the process."""

    def __init__(self) -> None:
        self.state: SecretState | None = None
        self.alignment: PartyAlignment | None = None

    def load_state(self) -> SecretState | None:
        """Its side of the last alignment, finished or not."""
        return None if self.state is None else self.state.copy()

    def save_state(self, state: SecretState) -> None:
        """Keep it."""
        self.state = state.copy()

    def save_alignment(self, alignment: PartyAlignment) -> None:
        """Keep the outcome."""
        self.alignment = alignment


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
        meta, arrays = read_archive(path, "secret")
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
        write_archive(self.directory / "secret.npz", meta, arrays)

    def save_alignment(self, alignment: PartyAlignment) -> None:
        """Keep the outcome."""
        alignment.save(self.alignment_path)
