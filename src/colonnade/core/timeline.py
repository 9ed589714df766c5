"""What everybody did when: intervals that a fabric notes while it carries calls.

Nothing here decides anything: a run with a timeline and one without have identical weights. Times
are seconds on the fabric's own clock (``Fabric.elapsed_seconds``).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Interval", "State", "Timeline"]

State = Literal["sending", "computing", "absent", "waiting", "evaluating", "keeping"]


class Interval(NamedTuple):
    """What one participant did from one moment to another.

    Attributes:
        party: Whose; None for the label holder.
        state: What it did.
        begin: When it began.
        end: When it ended.
        party_awaited: For whom the label holder waited, if it waited for an answer.
    """

    party: str | None
    state: State
    begin: float
    end: float
    party_awaited: str | None = None


class Timeline:
    """Gathers intervals until somebody takes them."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: list[Interval] = []

    def note(
        self,
        party: str | None,
        state: State,
        begin: float,
        end: float,
        party_awaited: str | None = None,
    ) -> None:
        """Note an interval; one of no length is left out.

        Args:
            party: Whose; None for the label holder.
            state: What it did.
            begin: When it began.
            end: When it ended.
            party_awaited: For whom the label holder waited.
        """
        if end > begin:
            self._noted.append(Interval(party, state, begin, end, party_awaited))

    def take(self) -> list[Interval]:
        """Take what was noted since the last time.

        Returns:
            In the order in which it was noted.
        """
        noted, self._noted = self._noted, []
        return noted
