"""What a run records of itself while it goes, in memory or in a directory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from colonnade.core.checkpoints import Vault
from colonnade.core.federation import Federation, LoopState
from colonnade.core.parties import Patience
from colonnade.core.party import Party
from colonnade.core.protection import Notes
from colonnade.core.snapshot import Snapshot
from colonnade.run.run_account import settle_account
from colonnade.run.storage import MemoryVault
from colonnade.run.timeline_file import TimelineFile

__all__ = ["MemoryRecords", "Records", "settle_in"]


class Records(Protocol):
    """Where metrics and checkpoints go."""

    @property
    def is_lasting(self) -> bool:
        """Whether a checkpoint outlives the process, so that it is worth keeping regularly."""

    @property
    def root(self) -> Path | None:
        """The directory; none of a run in memory."""

    def vault(self, party: str) -> Vault:
        """A party's own place for checkpoints."""

    def ledger(self, owner: str | None) -> Notes | None:
        """A party's own ledger, or the label holder's (None); none if nothing lasts."""

    def log(self, message: str) -> None:
        """Note what happened, for whoever looks later."""

    def record(self, line: Mapping[str, Any]) -> None:
        """Note a measurement, at once."""

    def timeline(self, keep: int, loop: LoopState) -> TimelineFile | None:
        """Where intervals go: at most ``keep``, after what the loop has done; none if nowhere."""

    def checkpoint(self, federation: Federation, loop: LoopState) -> None:
        """Keep everybody's state, and wait until it counts."""

    def keeping(
        self,
        federation: Federation,
        snapshot: Snapshot,
        loop: LoopState,
        patience: Patience,
        is_newest: Callable[[], bool],
    ) -> Coroutine[Any, Any, None]:
        """Keep everybody's state, for whoever goes on meanwhile."""

    def end_with(self, federation: Federation, exchange: int) -> None:
        """Make an earlier exchange's weights those that the run ends with."""

    def seal(self, federation: Federation) -> None:
        """Nothing more will leave: make every party's ledger last."""

    def go_back(self, federation: Federation) -> int | None:
        """Go back to the last checkpoint's weights; its exchange, or none if there is none."""

    def recorded(self) -> Sequence[Mapping[str, Any]]:
        """The measurements so far."""

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Note how the run ended."""


class MemoryRecords:
    """Records of a run without a directory."""

    is_lasting = False
    root: Path | None = None

    def __init__(self) -> None:
        self._holder = MemoryVault()
        self._newest: int | None = None
        # For the result's history.
        self.lines: list[Mapping[str, Any]] = []

    def vault(self, party: str) -> Vault:
        """A party's checkpoints, in memory."""
        return MemoryVault()

    def ledger(self, owner: str | None) -> Notes | None:
        """None: it would go with the process."""
        return None

    def log(self, message: str) -> None:
        """Nothing: whoever started the run sees what it raises."""

    def record(self, line: Mapping[str, Any]) -> None:
        """Keep it for the result."""
        self.lines.append(line)

    def timeline(self, keep: int, loop: LoopState) -> TimelineFile | None:
        """None: nobody looks on."""
        return None

    def checkpoint(self, federation: Federation, loop: LoopState) -> None:
        """Keep everybody's weights."""
        tag, best = str(loop.exchange), str(loop.best_exchange)
        federation.ask_all("keep", tag)
        federation.holder.refuse_non_finite()
        self._holder.keep(tag, federation.holder.state())
        federation.ask_all("retain", tag, tag, best)
        self._holder.retain((tag, best))
        self._newest = loop.exchange

    async def keeping(
        self,
        federation: Federation,
        snapshot: Snapshot,
        loop: LoopState,
        patience: Patience,
        is_newest: Callable[[], bool],
    ) -> None:
        """The same: parties of a run without a directory are here, and answer at once."""
        self.checkpoint(federation, loop)

    def end_with(self, federation: Federation, exchange: int) -> None:
        """Go back to those weights."""
        federation.holder.restore(self._holder.fetch(str(exchange)))
        federation.ask_all("fetch", str(exchange))

    def seal(self, federation: Federation) -> None:
        """Nothing: without a directory there is no ledger."""

    def go_back(self, federation: Federation) -> int | None:
        """Go back to the newest weights that were kept."""
        if self._newest is not None:
            self.end_with(federation, self._newest)
        return self._newest

    def recorded(self) -> Sequence[Mapping[str, Any]]:
        """The measurements so far."""
        return self.lines

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Nothing: the result has it."""


def settle_in(federation: Federation, records: Records, parties: Mapping[str, Party]) -> None:
    """Give everybody here a place: parties their vaults and ledgers, the label holder its ledger.

    Args:
        federation: Before its first exchange, or before it resumes.
        records: Where the run records.
        parties: The parties in this process.
    """
    for name, party in parties.items():
        if records.root is not None:
            settle_account(party, records.root, is_expected=False)
        party.settle_in(records.vault(name), records.ledger(name))
    own = records.ledger(None)
    if own is not None and federation.door is not None:
        federation.door.write_to(own)
