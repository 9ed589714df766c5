"""When a run keeps checkpoints, and those that are under way while training goes on.

A method that waits for nobody does not wait for a checkpoint either: the label holder writes its
own part while the parties compute, where a method leaves it time for that. One regular checkpoint
is under way at a time; what is due meanwhile is left out and recorded. Where a run ends with its
best weights, every evaluation has a checkpoint of the same exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from colonnade.core.beside import Beside
from colonnade.core.federation import Event, Federation, LoopState
from colonnade.core.loop import Timekeeper
from colonnade.core.parties import Patience
from colonnade.core.snapshot import Snapshot
from colonnade.run.records import Records

__all__ = ["Keeping"]


@dataclass(frozen=True)
class _UnderWay:
    exchange: int
    snapshot: Snapshot
    task: Beside[None]


class Keeping:
    """Keeps checkpoints of a run: every so many exchanges, and of the best.

    Args:
        federation: What is trained.
        loop: How far it is.
        records: Where checkpoints go.
        timekeeper: Counts the time that they take during an exchange.
        every: How many exchanges lie between two regular ones; none if there are none.
        keeps_best: Whether the best exchange must be kept.
    """

    def __init__(
        self,
        federation: Federation,
        loop: LoopState,
        records: Records,
        timekeeper: Timekeeper,
        *,
        every: int | None,
        keeps_best: bool,
    ) -> None:
        self._federation = federation
        self._loop = loop
        self._records = records
        self._every = every
        self._keeps_best = keeps_best
        self._under_way: list[_UnderWay] = []
        self._is_owed = False
        self._timekeeper = timekeeper
        federation.parties.meanwhile.append(self._look_meanwhile)

    def after(self, event: Event) -> dict[str, Any] | None:
        """Look after those under way, keep one if it is time; a line for the record if it can't."""
        is_due = self._every is not None and event.exchange % self._every == 0
        if not self._federation.waits_for_nobody:
            if is_due or (event.is_best and self._keeps_best):
                self._records.checkpoint(self._federation, self._loop)
                self._federation.fabric.pass_time("checkpoint")
            return None
        self._look()
        if event.is_asked and self._keeps_best:
            self._begin(event.exchange)
        elif is_due or (self._is_owed and not self._under_way):
            if self._under_way:
                return self._skipped(event)
            self._begin(event.exchange)
        return None

    def last(self) -> None:
        """Keep a last one, and wait for it."""
        self._look()
        for item in self._under_way:
            item.task.give_up()
        self._under_way.clear()
        self._records.checkpoint(self._federation, self._loop)

    def _look_meanwhile(self) -> None:
        if self._under_way:
            with self._timekeeper.on("keeping"):
                self._look()

    def _look(self) -> None:
        for item in list(self._under_way):
            if item.task.advance():
                self._under_way.remove(item)

    def _begin(self, exchange: int) -> None:
        self._is_owed = False
        snapshot = self._federation.snapshot()
        keeping = self._records.keeping(
            self._federation, snapshot, self._loop, Patience(), lambda: self._is_newest(exchange)
        )
        task = Beside(keeping)
        if not task.is_done:
            self._under_way.append(_UnderWay(exchange, snapshot, task))

    def _is_newest(self, exchange: int) -> bool:
        # To let go of all but this one would be to let go of those that came after it.
        return all(item.exchange <= exchange for item in self._under_way)

    def _skipped(self, event: Event) -> dict[str, Any]:
        self._is_owed = True
        self._loop.skipped_checkpoints += 1
        return {
            "kind": "skipped",
            "what": "checkpoint",
            "exchange": event.exchange,
            "waits_for": list(self._under_way[0].snapshot.cut.aside.owing()),
        }
