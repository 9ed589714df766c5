"""What several methods remember at the label holder."""

from __future__ import annotations

from dataclasses import dataclass, field

from colonnade.core.messages import Batch
from colonnade.core.parties import Parties

__all__ = ["LeftOut", "OwnPace"]


@dataclass
class LeftOut:
    """How many exchanges were left out because nobody, or not everybody, was known."""

    count: int = 0


@dataclass
class OwnPace:
    """The number of the batch that each party embeds next, at its own pace."""

    next: dict[str, int] = field(default_factory=dict)

    def request(self, parties: Parties, name: str) -> None:
        """Ask a party for its next batch, and wait for nothing."""
        parties.start(name, "embed", Batch("train", self.next[name]))
        self.next[name] += 1

    def uploaded(self, name: str) -> Batch:
        """The batch that a party was asked for last."""
        return Batch("train", self.next[name] - 1)
