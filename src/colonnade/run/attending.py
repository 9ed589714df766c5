"""Says who is away, who is back, and who always comes too late, while a run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from colonnade.core.fabric import TICKS_PER_SECOND
from colonnade.core.federation import Federation

__all__ = ["Attending", "News", "attendance_of"]

# Without a timeout of the run's own, a party counts as away after so many ticks without a sign.
_SILENT_TICKS = 10_000


class News(NamedTuple):
    """What changed about a party, and in words."""

    party: str
    change: Literal["absent", "back", "starving"]
    text: str


class Attending:
    """Looks after every exchange; says each thing once."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._silent = federation.patience.timeout or _SILENT_TICKS
        self._away: set[str] = set()
        self._starving: set[str] = set()

    def news(self) -> Iterator[News]:
        """What changed since it was last asked."""
        attendance = self._federation.parties.attendance
        away = set(attendance.away) | self._without_a_sign()
        for name in sorted(away - self._away):
            text = f"warning: '{name}' does not answer; the run goes on without it"
            yield News(name, "absent", text)
        for name in sorted(self._away - away):
            yield News(name, "back", f"'{name}' is back")
        starving = set(attendance.starving)
        for name in sorted(starving - self._starving):
            text = (
                f"warning: '{name}' answers, but always too late to take part; raise "
                "patience.timeout above the time that it needs"
            )
            yield News(name, "starving", text)
        self._away, self._starving = away, starving

    def _without_a_sign(self) -> set[str]:
        """Of a method that waits for nobody, those who have owed an answer for long."""
        fabric = self._federation.fabric
        if not self._federation.waits_for_nobody:
            return set()
        since = {name: fabric.silent_since(name) for name in fabric.names}
        limit = fabric.now() - self._silent
        return {name for name, tick in since.items() if tick is not None and tick <= limit}


def attendance_of(federation: Federation) -> dict[str, Any]:
    """For a summary: who came late, who was left out, who starved, who held everybody up."""
    found = federation.parties.attendance
    return {
        "late": dict(found.late),
        "left_out": dict(found.left_out),
        "starving": list(found.starving),
        "held_up_seconds": {
            name: ticks / TICKS_PER_SECOND for name, ticks in found.held_up.items()
        },
    }
