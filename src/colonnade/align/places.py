"""What a participant keeps of an alignment for later, and its place: memory or its own disk.

- ``alignment.npz``: the outcome (``files``).
- ``secret.npz`` and ``prints.npz``: its key, and keyed fingerprints of its own ids, for resuming
  and for extending. Whoever has both can test guesses of this participant's ids, so they are
  readable by their owner only.
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
from colonnade.core.errors import StorageError

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

    def load_prints(self, state: SecretState) -> Bytes:
        """Fingerprints of the ids that were sent in a state's rounds, under its secret."""

    def save_prints(self, state: SecretState, prints: Bytes) -> None:
        """Keep them; they are needed once a round, so they stay out of memory."""

    def save_alignment(self, alignment: PartyAlignment) -> None:
        """Keep the outcome."""


class MemoryPlace:
    """A participant's place in memory: gone with the process."""

    def __init__(self) -> None:
        self.state: SecretState | None = None
        self.alignment: PartyAlignment | None = None
        self._prints: tuple[str, Bytes] | None = None

    def load_state(self) -> SecretState | None:
        """Its side of the last alignment, finished or not."""
        return None if self.state is None else self.state.copy()

    def save_state(self, state: SecretState) -> None:
        """Keep it."""
        self.state = state.copy()

    def load_prints(self, state: SecretState) -> Bytes:
        """Fingerprints of the ids that were sent in a state's rounds."""
        return _prints_of(state, self._prints)

    def save_prints(self, state: SecretState, prints: Bytes) -> None:
        """Keep them."""
        self._prints = (state.run, prints)

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
        arrays = {"secret": secret, "numbers": state.numbers}
        write_archive(self.directory / "secret.npz", meta, arrays)

    def load_prints(self, state: SecretState) -> Bytes:
        """Fingerprints of the ids that were sent in a state's rounds."""
        path = self.directory / "prints.npz"
        if not path.exists():
            return _prints_of(state, None)
        meta, arrays = read_archive(path, "fingerprints")
        return _prints_of(state, (meta["run"], arrays["prints"]))

    def save_prints(self, state: SecretState, prints: Bytes) -> None:
        """Keep them, for their owner only."""
        write_archive(self.directory / "prints.npz", {"run": state.run}, {"prints": prints})

    def save_alignment(self, alignment: PartyAlignment) -> None:
        """Keep the outcome."""
        alignment.save(self.alignment_path)


def _prints_of(state: SecretState, kept: tuple[str, Bytes] | None) -> Bytes:
    """Those of a state's rounds; an interrupted round may have left more behind them."""
    num_sent = state.ends[-1] if state.ends else 0
    run, prints = kept or ("", np.zeros((0, TAG_BYTES), np.uint8))
    if num_sent and (run != state.run or len(prints) < num_sent):
        raise StorageError("the fingerprints of the earlier alignment are gone; align anew")
    return prints[:num_sent]
