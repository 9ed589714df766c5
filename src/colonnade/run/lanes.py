"""Keeps a run's timeline while it trains: one lane a party, one for the label holder."""

from __future__ import annotations

from typing import Any

from colonnade.core.config import dump
from colonnade.core.errors import ColonnadeError
from colonnade.core.fabric import RealClock
from colonnade.core.federation import Federation, LoopState
from colonnade.core.loop import Timekeeper
from colonnade.core.timeline import Timeline
from colonnade.quality.headline import headline_of
from colonnade.quality.result_card import guess
from colonnade.run.assembly import Blueprint
from colonnade.run.timeline_file import TimelineFile

__all__ = ["Lanes", "start_of"]


class Lanes:
    """Hands what the fabric noted to the timeline's file, in the run's own seconds.

    Args:
        blueprint: What the run was made from.
        federation: What is trained.
        loop: How far it is.
        timekeeper: The run's account of time.
        file: Where it goes; none if nobody wants it, and then nothing is noted.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        federation: Federation,
        loop: LoopState,
        timekeeper: Timekeeper,
        file: TimelineFile | None,
    ) -> None:
        self._fabric = federation.fabric
        self._loop = loop
        self._timekeeper = timekeeper
        self._file = file
        self._clock = federation.holder.clock
        self._num_updates = self._updates_so_far()
        # Who is away, since when.
        self._away: dict[str, float] = {}
        self._timeline = self._fabric.timeline = None if file is None else Timeline()
        if file is not None:
            file.start(start_of(blueprint, federation))
        if loop.exchange:
            self.mark("resumed")

    def after_exchange(self) -> None:
        """An exchange is done."""
        if self._file is not None and self._timeline is not None:
            noted = self._timeline.take()
            before, self._num_updates = self._num_updates, self._updates_so_far()
            updates = self._num_updates - before if isinstance(self._clock, RealClock) else None
            self._file.add(self._loop.exchange, self._timekeeper.offset(), noted, updates)

    def _updates_so_far(self) -> int:
        return self._clock.num_units["fuse"] if isinstance(self._clock, RealClock) else 0

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


def start_of(blueprint: Blueprint, federation: Federation) -> dict[str, Any]:
    """How long a run will be at most, and what to compare it with.

    Args:
        blueprint: What the run was made from.
        federation: Before its first exchange.

    Returns:
        ``exchanges``; ``metric``, the one to look at first, and ``guess``, the validation metrics
        of the same answer for everybody (both None without a validation part); ``budgets`` of
        the parties whose policies are here.
    """
    found: dict[str, Any] = {
        "exchanges": federation.num_exchanges(blueprint.spec.stop),
        "metric": None,
        "guess": None,
        "budgets": {},
    }
    parts, task = federation.holder.parts, blueprint.task
    if "validation" in parts:
        values = parts["validation"].values
        who, outputs = guess(task, parts["train"].values, len(values))
        found["metric"] = headline_of(task, values, blueprint.spec.stop.metric)
        found["guess"] = {"who": who, "metrics": dict(task.measure(outputs, values))}
    for name, budget in blueprint.doors().budgets.items():
        found["budgets"][name] = dump(budget)
    return found
