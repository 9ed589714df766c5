"""Who answered in time, who did not, and who held everybody else up.

An absentee is remembered: it is neither asked again nor waited for while its last call is open. The
link keeps that call and delivers it when the party is back; any sign of it since ends the absence.
On a fabric that may lose a call (``Fabric.keeps_calls``) everybody is asked in every exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from colonnade.core.fabric import Fabric

__all__ = ["Attendance"]

# So many late answers in a row, with none in time between them, and a party counts as starving.
_STARVING = 3


class Attendance:
    """Counts by party, and who is away now.

    Attributes:
        late: Answers that came when nobody waited for them any more.
        left_out: Questions that went on without a party's answer.
        held_up: Ticks for which the label holder waited for this party when everybody else had
            answered.
        took: By party that was late, the ticks that its last late answer took.
        is_disturbed: Whether anybody ever failed to answer in time.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.late = dict.fromkeys(names, 0)
        self.left_out = dict.fromkeys(self.late, 0)
        self.held_up = dict.fromkeys(self.late, 0)
        # Late answers since the last one in time.
        self._late_in_a_row = dict.fromkeys(self.late, 0)
        self.took: dict[str, int] = {}
        # By party, the tick at which it was given up.
        self._away: dict[str, int] = {}
        self.is_disturbed = False

    @property
    def away(self) -> tuple[str, ...]:
        """Who did not answer in time, and has not been heard of since."""
        return tuple(sorted(self._away))

    @property
    def starving(self) -> tuple[str, ...]:
        """Who answers, but always too late: it computes and takes part in nothing."""
        return tuple(name for name, count in self._late_in_a_row.items() if count >= _STARVING)

    def here(self, names: Iterable[str], fabric: Fabric) -> tuple[str, ...]:
        """Those of ``names`` that are not away; for the others, one question more without them."""
        found = []
        for name in names:
            given_up = self._away.get(name)
            if given_up is not None and fabric.heard_since(name, given_up):
                del self._away[name]
            if name in self._away:
                self.left_out[name] += 1
            else:
                found.append(name)
        return tuple(found)

    def worth_waiting_for(self, names: Iterable[str], ticks: int | None) -> set[str]:
        """Those of ``names`` that may answer within so many ticks; all, if none may.

        Whoever starves and took longer the last time is asked, but not waited for. Its next answer
        tells whether it has become faster.
        """
        asked = set(names)
        if ticks is None:
            return asked
        slow = {name for name in self.starving if self.took.get(name, 0) > ticks}
        return asked - slow or asked

    def forgive(self) -> None:
        """Have everybody asked once more, whoever is away."""
        self._away.clear()

    def heard(self, party: str, *, in_time: bool = False, took: int | None = None) -> None:
        """Something came from a party; to a question in time, or late after so many ticks."""
        self._away.pop(party, None)
        if in_time:
            self._late_in_a_row[party] = 0
        elif took is not None and party in self.late:
            self.late[party] += 1
            self._late_in_a_row[party] += 1
            self.took[party] = took

    def gave_up(self, names: Iterable[str], since: int, tick: int) -> None:
        """A question goes on without these, after a wait for them alone from ``since`` on."""
        self.is_disturbed = True
        for name in names:
            self.waited([name], tick - since)
            self.left_out[name] += 1
            self._away[name] = tick

    def waited(self, names: Iterable[str], ticks: int) -> None:
        """The label holder waited for these alone."""
        for name in names:
            self.held_up[name] += max(0, ticks)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "away": list(self._away),
            "late": dict(self.late),
            "left_out": dict(self.left_out),
            "held_up": dict(self.held_up),
            "late_in_a_row": dict(self._late_in_a_row),
            "took": dict(self.took),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave; a checkpoint of an older version has none."""
        for counts, name in (
            (self.late, "late"),
            (self.left_out, "left_out"),
            (self.held_up, "held_up"),
            (self._late_in_a_row, "late_in_a_row"),
            (self.took, "took"),
        ):
            counts.update(state.get(name, {}))
        # Ticks of another process mean nothing here: the first sign of a party ends its absence.
        self._away = dict.fromkeys(state.get("away", ()), -1)
        self.is_disturbed = any(self.left_out.values())
