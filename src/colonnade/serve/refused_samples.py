"""Samples that a party refused lately: others need not be refused together with them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

__all__ = ["RefusedSamples"]

_SECONDS = 2.0
_MOST = 100_000


class RefusedSamples:
    """Which party refused which id, for two seconds; the oldest are forgotten first.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def note(self, party: str, ids: Iterable[str]) -> None:
        """A party has refused these ids."""
        for name in ids:
            self._until[party, name] = self._clock() + _SECONDS
            self._until.move_to_end((party, name))
        while len(self._until) > _MOST:
            self._until.popitem(last=False)

    def by(self, name: str, parties: Iterable[str]) -> frozenset[str]:
        """The parties that refused an id lately."""
        if not self._until:
            return frozenset()
        now = self._clock()
        return frozenset(party for party in parties if self._until.get((party, name), -1.0) > now)
