"""What every person's releases amount to, as a table in memory; and that table in figures."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from colonnade.protect.rounded_gaussian import Array

__all__ = ["COLUMNS", "Held", "PeopleSums", "person_numbers"]

COLUMNS = ("releases", "spent", "bare")
_NUMBER = re.compile(r"([+-]?\d+)\.0+")


def person_numbers(ids: Iterable[str], key: bytes) -> Tensor:
    """A number for every id under a key (int64).

    An id written in another way by another export is the same person: spaces, capitals, forms of
    Unicode, and 7.0 for 7 make no difference. Two ids that become one share an account.
    """

    def number(text: str) -> int:
        plain = "".join(unicodedata.normalize("NFKC", text).casefold().split())
        whole = _NUMBER.fullmatch(plain)
        plain = whole[1] if whole else plain
        found = hashlib.blake2b(plain.encode("utf-8", "replace"), key=key, digest_size=8)
        return int.from_bytes(found.digest(), "little") >> 1

    return torch.tensor([number(str(item)) for item in ids], dtype=torch.int64)


@dataclass(frozen=True, kw_only=True)
class Held:
    """An account in figures, without anybody's name.

    ``quantiles`` gives releases, μ and releases without noise at the minimum, the quartiles and
    the maximum over people.
    """

    num_people: int
    num_charges: int
    quantiles: dict[str, tuple[float, ...]]
    num_bare: int
    is_behind: bool

    @classmethod
    def of(cls, table: Array, *, num_charges: int, is_behind: bool) -> Held:
        """The figures of a table with a row of sums for everybody."""
        table = table.copy()
        table[:, 1] = np.sqrt(table[:, 1])
        ranks = np.zeros((5, 3))
        if len(table):
            ranks = np.quantile(table, (0, 0.25, 0.5, 0.75, 1), axis=0)
        names = ("releases", "mu", "without noise")
        return cls(
            num_people=len(table),
            num_charges=num_charges,
            quantiles={name: tuple(ranks[:, at].tolist()) for at, name in enumerate(names)},
            num_bare=int((table[:, 2] > 0).sum()),
            is_behind=is_behind,
        )


class PeopleSums:
    """Releases, μ² and releases without noise of every person, in memory."""

    def __init__(self, people: Sequence[tuple[int, ...]] = (), least: Sequence[float] = ()) -> None:
        # With what somebody begins who is not known yet.
        self.least: Array = np.array(least or (0.0, 0.0, 0.0))
        self.places = {row[0]: place for place, row in enumerate(people)}
        # With room for more, so that not every newcomer has all of it copied.
        self._rows: Array = np.array([row[1:] for row in people], dtype=np.float64).reshape(-1, 3)

    @property
    def table(self) -> Array:
        """A row for everybody, in the order of ``places``."""
        return self._rows[: len(self.places)]

    @property
    def most(self) -> list[float]:
        """The most that anybody has, or can have had."""
        found: list[float] = np.maximum(self.least, self.table.max(axis=0, initial=0.0)).tolist()
        return found

    def counted(self, keys: Array) -> tuple[Array, Array]:
        """Where these people stand in the table, each once, and how often each is among them."""
        places = self.places_of(keys)
        if len(set(places.tolist())) == len(places):
            # Hardly ever is somebody in it twice, and to sort takes longer than to look.
            return places, np.ones(len(places))
        found, often = np.unique(places, return_counts=True)
        return found, often.astype(np.float64)

    def places_of(self, keys: Array) -> Array:
        """Where these people stand in the table; new ones are added."""
        places, before = self.places, len(self.places)
        found = [places.setdefault(key, len(places)) for key in keys.tolist()]
        if len(places) > len(self._rows):
            self._rows = np.concatenate([self._rows[:before], np.zeros((len(places), 3))])
        self._rows[before : len(places)] = self.least
        return np.array(found, dtype=np.int64)
