"""What a run records of itself while it goes, in memory or in a directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from colonnade.core.federation import Federation, LoopState
from colonnade.core.party import Vault
from colonnade.run.storage import MemoryVault

__all__ = ["MemoryRecords", "Records"]


class Records(Protocol):
    """Where metrics and checkpoints go."""

    @property
    def is_lasting(self) -> bool:
        """Whether a checkpoint outlives the process, so that it is worth keeping regularly."""

    def vault(self, party: str) -> Vault:
        """A party's own place for checkpoints."""

    def log(self, message: str) -> None:
        """Note what happened, for whoever looks later."""

    def record(self, line: Mapping[str, Any]) -> None:
        """Note a measurement, at once."""

    def checkpoint(self, federation: Federation, loop: LoopState) -> None:
        """Keep everybody's state."""

    def end_with(self, federation: Federation, exchange: int) -> None:
        """Make an earlier exchange's weights those that the run ends with."""

    def seal(self, federation: Federation) -> None:
        """Nothing more will leave: make every party's ledger last."""

    def go_back(self, federation: Federation) -> int | None:
        """Go back to the last checkpoint's weights; its exchange, or none if there is none."""

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Note how the run ended."""


class MemoryRecords:
    """Records of a run without a directory."""

    is_lasting = False

    def __init__(self) -> None:
        self._holder = MemoryVault()
        self._newest: int | None = None

    def vault(self, party: str) -> Vault:
        """A party's checkpoints, in memory."""
        return MemoryVault()

    def log(self, message: str) -> None:
        """Nothing: whoever started the run sees what it raises."""

    def record(self, line: Mapping[str, Any]) -> None:
        """Nothing: nobody could read it."""

    def checkpoint(self, federation: Federation, loop: LoopState) -> None:
        """Keep everybody's weights."""
        tag, best = str(loop.exchange), str(loop.best_exchange)
        federation.fabric.run(federation.fabric.keep(tag))
        federation.holder.refuse_non_finite()
        self._holder.keep(tag, federation.holder.state())
        federation.fabric.run(federation.fabric.retain(tag, best))
        self._holder.retain((tag, best))
        self._newest = loop.exchange

    def end_with(self, federation: Federation, exchange: int) -> None:
        """Go back to those weights."""
        federation.holder.restore(self._holder.fetch(str(exchange)))
        federation.fabric.run(federation.fabric.fetch(str(exchange)))

    def seal(self, federation: Federation) -> None:
        """Nothing: without a directory there is no ledger."""

    def go_back(self, federation: Federation) -> int | None:
        """Go back to the newest weights that were kept."""
        if self._newest is not None:
            self.end_with(federation, self._newest)
        return self._newest

    def summarize(self, summary: Mapping[str, Any]) -> None:
        """Nothing: the result has it."""
