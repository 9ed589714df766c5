"""Embeddings that parties have released, kept for a while: a second look releases nothing new.

An entry belongs to one version of a model, one party and one id. The oldest entries go first when
the cache is full. Blinded runs keep nothing: of a sum nobody's part is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor

from colonnade.core.errors import ConfigError

__all__ = ["KeptEmbedding", "KeptEmbeddings"]


class KeptEmbedding(NamedTuple):
    """One party's embedding of one sample, and when it was released."""

    value: Tensor
    released: float


class KeptEmbeddings:
    """A cache with a largest age and a largest number of entries; either at 0 keeps nothing.

    Args:
        most: The most entries.
        longest_seconds: How old an entry may be.
        clock: Seconds that only grow.
        asks_consent: Whether a party's embeddings are kept only once ``allow`` said for how long.
    """

    def __init__(
        self,
        *,
        most: int,
        longest_seconds: float,
        clock: Callable[[], float],
        asks_consent: bool = False,
    ) -> None:
        if most < 0 or longest_seconds < 0:
            raise ConfigError("cache: neither size nor age can be negative")
        self._most, self._longest, self._clock = most, longest_seconds, clock
        self._asks_consent = asks_consent
        # By party, the seconds that it agreed to.
        self._allowed: dict[str, float] = {}
        self._entries: OrderedDict[tuple[str, str], KeptEmbedding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_open(self) -> bool:
        """Whether anything can be kept at all."""
        return self._most > 0 and self._longest > 0

    def allow(self, party: str, seconds: float) -> None:
        """Note for how long a party lets its embeddings be kept."""
        self._allowed[party] = seconds

    def _age(self, party: str) -> float:
        """How old an embedding of a party may be."""
        if not self._asks_consent:
            return self._longest
        return min(self._longest, self._allowed.get(party, 0.0))

    def find(self, party: str, name: str) -> KeptEmbedding | None:
        """The embedding of an id, unless it is too old."""
        known = self._entries.get((party, name))
        if known is None:
            return None
        if self._clock() - known.released > self._age(party):
            del self._entries[party, name]
            return None
        return known

    def keep(self, party: str, ids: Iterable[str], embeddings: Tensor, released: float) -> None:
        """Keep what a party released for these ids, a row per id."""
        if not self._most or not self._age(party):
            return
        for name, row in zip(ids, embeddings, strict=True):
            self._entries[party, name] = KeptEmbedding(row.clone(), released)
            self._entries.move_to_end((party, name))
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def forget(self, party: str) -> None:
        """Drop everything of a party: its table changed."""
        for key in [key for key in self._entries if key[0] == party]:
            del self._entries[key]
