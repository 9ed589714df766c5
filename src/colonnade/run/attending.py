"""Says who is away, who is back, and who always comes too late: while a run goes on, and after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from colonnade.core.attendance import Attendance
from colonnade.core.fabric import TICKS_PER_SECOND
from colonnade.core.federation import Federation

__all__ = ["Attending", "News", "attendance_of", "tardiness_of", "warnings_of_tardiness"]

# Without a timeout of the run's own, a party counts as away after so many ticks without a sign.
_SILENT_TICKS = 10_000
# Whoever was away before is away again for so many ticks before that is worth a word: a slow party
# misses one question after another.
_BRIEF_TICKS = 2_000
# Whoever misses this share of the exchanges is warned of, though it does not starve.
_OFTEN = 0.1


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
        # By party that is away, since which tick.
        self._since: dict[str, int] = {}
        # Of whom it was said that they are away; that they ever were; that they starve.
        self._away: set[str] = set()
        self._known: set[str] = set()
        self._starving: set[str] = set()

    def news(self) -> Iterator[News]:
        """What changed since it was last asked.

        A party's first absence is told at once, later ones if they last. That it starves is told
        once.
        """
        attendance, now = self._federation.parties.attendance, self._federation.fabric.now()
        away = set(attendance.away) | self._without_a_sign()
        self._since = {name: self._since.get(name, now) for name in away}
        for name in sorted(away - self._away):
            if name not in self._known or now - self._since[name] >= _BRIEF_TICKS:
                self._away.add(name)
                text = f"warning: '{name}' does not answer; the run goes on without it"
                yield News(name, "absent", text)
        for name in sorted(self._away - away):
            yield News(name, "back", f"'{name}' is back")
        for name in sorted(set(attendance.starving) - self._starving):
            yield News(name, "starving", f"warning: {_starves(name, attendance)}")
        self._known |= self._away
        self._away &= away
        self._starving |= set(attendance.starving)

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


def tardiness_of(federation: Federation) -> dict[str, Any]:
    """For a run's findings: late answers, questions left out and who starves; only if there are.

    Returns:
        ``late`` and ``left_out`` by party, without those who have none, and ``starving``.
    """
    found = federation.parties.attendance
    counts = {
        what: {name: count for name, count in by_party.items() if count}
        for what, by_party in (("late", found.late), ("left_out", found.left_out))
    }
    return {
        what: item for what, item in (*counts.items(), ("starving", list(found.starving))) if item
    }


def warnings_of_tardiness(federation: Federation, num_exchanges: int) -> tuple[str, ...]:
    """What to warn of at the end of so many exchanges: who starves, and who was often left out."""
    found = federation.parties.attendance
    said = []
    for name in federation.parties.names:
        if name in found.starving:
            said.append(_starves(name, found))
        elif found.left_out[name] > _OFTEN * num_exchanges:
            said.append(
                f"'{name}' was left out of {found.left_out[name]} questions in {num_exchanges} "
                f"exchanges; {found.late[name]} of its answers came too late"
            )
    return tuple(said)


def _starves(name: str, attendance: Attendance) -> str:
    return (
        f"'{name}' answers, but always too late to take part; raise patience.timeout above the "
        f"time that it needs (its last answer took {attendance.took.get(name, 0)} ticks)"
    )
