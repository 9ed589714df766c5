"""Keeps a run's timeline while it trains: one lane a party, one for the label holder."""

from __future__ import annotations

from colonnade.core.errors import ColonnadeError
from colonnade.core.federation import Federation, LoopState
from colonnade.core.loop import Timekeeper
from colonnade.core.timeline import Timeline
from colonnade.run.timeline_file import TimelineFile

__all__ = ["Lanes"]


class Lanes:
    """Hands what the fabric noted to the timeline's file, in the run's own seconds.

    Args:
        federation: What is trained.
        loop: How far it is.
        timekeeper: The run's account of time.
        file: Where it goes; none if nobody wants it, and then nothing is noted.
    """

    def __init__(
        self,
        federation: Federation,
        loop: LoopState,
        timekeeper: Timekeeper,
        file: TimelineFile | None,
    ) -> None:
        self._fabric = federation.fabric
        self._loop = loop
        self._timekeeper = timekeeper
        self._file = file
        # Who is away, since when.
        self._away: dict[str, float] = {}
        self._timeline = self._fabric.timeline = None if file is None else Timeline()
        if loop.exchange:
            self.mark("resumed")

    def after_exchange(self) -> None:
        """An exchange is done."""
        if self._file is not None and self._timeline is not None:
            noted = self._timeline.take()
            self._file.add(self._loop.exchange, self._timekeeper.offset(), noted)

    def attends(self, party: str, change: str, text: str) -> None:
        """A party is away, is back, or always comes too late."""
        now = self._fabric.elapsed_seconds()
        if change == "absent":
            self._away[party] = now
        elif change == "back" and self._timeline is not None:
            self._timeline.note(party, "absent", self._away.pop(party, now), now)
        self.mark(change, party, text)

    def failed(self, error: ColonnadeError, what: str = "fault") -> None:
        """The run ends here, or goes back to a checkpoint; marks whoever the error names."""
        parties = getattr(error, "parties", ()) or (getattr(error, "party", None),)
        for party in parties:
            self.mark(what, party, str(error))

    def mark(self, what: str, party: str | None = None, text: str = "") -> None:
        """Mark what happened now."""
        if self._file is not None:
            self.after_exchange()
            loop = self._loop
            self._timekeeper.look()
            self._file.mark(
                what, exchange=loop.exchange, elapsed=loop.elapsed, party=party, text=text
            )

    def end(self) -> None:
        """Nothing more comes."""
        if self._file is not None:
            self.after_exchange()
            self._file.write()
        self._timeline = self._fabric.timeline = None
