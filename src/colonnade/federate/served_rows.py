"""The rows that a party served: how far from training they are, seen here and told in aggregate.

A party counts rows with values far outside its training range, and how far the mean of its inputs
and of its embeddings has moved. All of it is shown in the party's own metrics. The label holder is
told only what the policy's ``tells`` names: counts over at least a hundred people, each of whom
counts once in a session, so that two counts that differ by one person are never told. Whoever is in
it is charged a release.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from colonnade.core.protection import PeopleAccount
from colonnade.core.releases import Count
from colonnade.data.prepare import Preparation
from colonnade.federate.party_policy import PartyPolicy
from colonnade.federate.run_at_party import note_at
from colonnade.quality.drift import Drift

__all__ = ["Aggregates", "RowsWatched", "ServedRows"]

# Of so many people at least, and in such pieces.
FEWEST = 100
# Drift crosses as a whole number of hundredths of a deviation, up to this.
_MOST_HUNDREDTHS = 1_000_000


class Aggregates(TypedDict, total=False):
    """Counts over the rows served since the last time; drift in hundredths of a deviation."""

    rows: Count
    far: Count
    input_drift: Count
    embedding_drift: Count


@dataclass
class RowsWatched:
    """A party's own numbers over all its sessions, for its metrics."""

    num_rows: int = 0
    num_far: int = 0
    inputs: Drift = field(default_factory=Drift)
    embeddings: Drift = field(default_factory=Drift)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def drift(self) -> dict[str, float]:
        """By what drifts, how far; what has too few rows is left out."""
        with self.lock:
            found = {
                "inputs": self.inputs.distance(),
                "embeddings": self.embeddings.distance(),
            }
        return {name: distance for name, distance in found.items() if distance is not None}


class ServedRows:
    """The rows that one session served.

    Args:
        preparation: The run's: it knows the training ranges.
        embed: Prepared rows to embeddings, without a graph; nothing of them leaves.
        usual: Prepared rows of the party's own table, to compare embeddings with.
        watched: The party's own numbers.
    """

    def __init__(
        self,
        preparation: Preparation,
        embed: Callable[[Tensor], Tensor],
        usual: Callable[[], Tensor],
        watched: RowsWatched,
    ) -> None:
        self._preparation, self._embed, self._usual = preparation, embed, usual
        self._watched = watched
        self._counted: set[int] = set()
        self._waiting: list[tuple[int, Tensor]] = []
        self._untold: list[int] = []
        self._num_far = 0
        self._inputs, self._embeddings = Drift(), Drift()
        # Mean and deviation of the embeddings of the party's own table.
        self._reference: tuple[Tensor, Tensor] | None = None

    def see(self, prepared: Tensor, people: Tensor) -> None:
        """Take in prepared rows and whose they are; a person counts once in a session."""
        for place, person in enumerate(people.tolist()):
            if person not in self._counted:
                self._counted.add(person)
                self._waiting.append((person, prepared[place]))
        while len(self._waiting) >= FEWEST:
            piece, self._waiting = self._waiting[:FEWEST], self._waiting[FEWEST:]
            self._count([person for person, _ in piece], torch.stack([row for _, row in piece]))

    def _count(self, people: list[int], rows: Tensor) -> None:
        if self._reference is None:
            usual = self._embed(self._usual()).flatten(1).double()
            self._reference = usual.mean(0), usual.std(0).clamp(min=1e-6)
        mean, deviation = self._reference
        moved = (self._embed(rows).flatten(1).double() - mean) / deviation
        far = int(np.count_nonzero(self._preparation.far_outside(rows.numpy())))
        self._inputs.see(rows)
        self._embeddings.see(moved)
        self._untold += people
        self._num_far += far
        with self._watched.lock:
            self._watched.num_rows += len(people)
            self._watched.num_far += far
            self._watched.inputs.see(rows)
            self._watched.embeddings.see(moved)

    def tell(self, policy: PartyPolicy, account: PeopleAccount, place: Path) -> Aggregates:
        """What may be told now, charged and written down; then counting begins anew.

        Args:
            policy: The party's.
            account: Whom it is charged to.
            place: The run in the party's directory, with its ledger.

        Returns:
            Nothing unless the policy allows it, and a hundred people who were not told of before
            have been served.

        Raises:
            Refused: An account is spent; nothing is told.
        """
        if not policy.tells or not self._untold:
            return {}
        people = torch.tensor(self._untold, dtype=torch.int64)
        account.charge(secrets.token_bytes(16), people, None)
        told: Aggregates = {"rows": torch.tensor(len(people))}
        if "far" in policy.tells:
            told["far"] = torch.tensor(self._num_far)
        if "drift" in policy.tells:
            told["input_drift"] = _hundredths(self._inputs)
            told["embedding_drift"] = _hundredths(self._embeddings)
        note_at(place, {"event": "left", "verb": "aggregates", "told": sorted(told)})
        self._untold, self._num_far = [], 0
        self._inputs, self._embeddings = Drift(), Drift()
        return told


def _hundredths(drift: Drift) -> Tensor:
    distance = drift.distance()
    assert distance is not None  # a piece has as many rows as it takes
    return torch.tensor(min(round(100 * distance), _MOST_HUNDREDTHS))
