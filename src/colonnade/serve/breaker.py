"""A breaker per party: after a silence nobody waits for it, until it is heard of again.

Closed: the party is asked. Open: it is left out. Half open: one exchange asks it again; an answer
closes the breaker, silence opens it for twice as long.

A party on a link is sought after its first silence, by a question that nobody waits for; its answer
ends the search. Several silences in a row open the breaker for a pause, whether or not the party
answers such questions: it is there, and too slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from colonnade.core.errors import ConfigError

__all__ = ["Breakers"]

_SHORTEST_SILENCE = 0.05


@dataclass
class _Breaker:
    num_silences: int = 0
    pause: float = 0.0
    opened: float | None = None
    is_probing: bool = False
    # Whether somebody looks for it, who says when it is back.
    is_sought: bool = False
    # How long its answers take, as a mean that forgets.
    typical: float = 0.0


class Breakers:
    """Every party's breaker.

    Args:
        parties: The parties.
        clock: Seconds that only grow.
        num_silences: Silences in a row that open a breaker.
        pause: Seconds until the first probe.
        longest_pause: Probes come at least this often.
    """

    def __init__(
        self,
        parties: Iterable[str],
        clock: Callable[[], float],
        *,
        num_silences: int = 3,
        pause: float = 0.5,
        longest_pause: float = 8.0,
    ) -> None:
        if num_silences < 1 or not 0 < pause <= longest_pause:
            raise ConfigError("breaker: at least one silence, and pauses above 0")
        self._clock = clock
        self._limit, self._pause, self._longest = num_silences, pause, longest_pause
        self._by_party = {name: _Breaker() for name in parties}

    def left_out(self, seconds: float) -> frozenset[str]:
        """Whom the next exchange does not wait for; a party whose pause is over is probed by it.

        Args:
            seconds: How much time it has. In a hurry nobody is probed, and whoever was silent in
                the last exchange is left out too: those who wait have waited for it once.
        """
        now, is_hurried = self._clock(), seconds < _SHORTEST_SILENCE
        left_out = set()
        for name, item in self._by_party.items():
            if item.is_sought:
                left_out.add(name)
                continue
            if item.opened is None:
                if is_hurried and item.num_silences:
                    left_out.add(name)
                continue
            if not (item.is_probing or is_hurried) and now >= item.opened + item.pause:
                item.is_probing = True
            else:
                left_out.add(name)
        return frozenset(left_out)

    def answered(self, party: str, seconds: float) -> None:
        """The party answered after so long: it is asked again from now on."""
        before = self._by_party[party].typical
        typical = seconds if not before else before + (seconds - before) / 8
        self._by_party[party] = _Breaker(typical=typical)

    def silent(self, party: str, waited: float, *, is_sought: bool = False) -> None:
        """The party was asked and did not answer within so many seconds.

        A wait that is short for this party says nothing: no caller shuts a party out by haste.

        Args:
            party: Its name.
            waited: For how long it was waited for.
            is_sought: Whether somebody looks for it from now on, until ``back``.
        """
        item = self._by_party[party]
        if waited < max(_SHORTEST_SILENCE, 2 * item.typical):
            item.is_probing = False
            return
        item.num_silences += 1
        item.is_sought = is_sought
        if item.is_probing or item.num_silences >= self._limit:
            item.pause = min(item.pause * 2 or self._pause, self._longest)
            item.opened, item.is_probing = self._clock(), False

    def back(self, party: str) -> None:
        """The party was sought and has been heard of: exchanges may ask it."""
        self._by_party[party].is_sought = False

    def not_asked(self, party: str) -> None:
        """The probe did not take place: the next exchange probes."""
        self._by_party[party].is_probing = False

    def states(self) -> dict[str, Literal["closed", "half open", "open"]]:
        """Every party's state, for people who watch."""
        return {
            name: "half open"
            if item.is_probing
            else "closed"
            if item.opened is None and not item.is_sought
            else "open"
            for name, item in self._by_party.items()
        }
