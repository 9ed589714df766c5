"""What stands at a party's door: everything that leaves passes it, whatever the method.

A guard works in two places. Inside the encoder it may add noise (``encoding`` tells it which
encoding begins). At the door it sees every answer (``leaving``): it may change the form in which
embeddings leave, keeps account of what left, or refuses. Methods know nothing of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.messages import Batch, Call, Summand, Value

__all__ = ["Encoding", "Guard", "Reader"]


class Encoding(NamedTuple):
    """One embedding that a party made: for what, which one, of which samples."""

    purpose: str
    number: int
    batch: Batch
    plan: BatchPlan
    embedding: Tensor


class Guard(ABC):
    """A party's protections, account, ledger and policy, as the party's code sees them."""

    @abstractmethod
    def encoding(self, purpose: str, number: int, batch: Batch) -> None:
        """An encoding begins: what is drawn in it depends on these and on the party's secret."""

    @abstractmethod
    def leaving(self, call: Call, value: Value, made: Sequence[Encoding]) -> Value:
        """What leaves in place of an answer; ``made`` are the embeddings made for it."""

    @abstractmethod
    def refused(self, call: Call, error: Exception) -> None:
        """Note that a call was refused."""

    @abstractmethod
    def spent(self) -> Mapping[str, float]:
        """What the releases so far amount to, in numbers; empty without a guarantee."""

    @abstractmethod
    def offer_key(self) -> Mapping[str, Tensor]:
        """A fresh public key for this session, signed."""

    @abstractmethod
    def accept_keys(self, keys: Mapping[str, Tensor]) -> None:
        """Agree with every other party on a secret, by the keys that they signed."""

    @abstractmethod
    def add_up(self, summand: Summand) -> None:
        """Raise unless an answer may go into this sum; from then on its serial is used up."""

    @abstractmethod
    def seal(self) -> Mapping[str, Any]:
        """Make what was noted last; how many entries there are and the last one's hash."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Secret and account, for the party's own checkpoint."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""


class Reader(Protocol):
    """Reads what a guard wrote, at the label holder."""

    def __call__(self, party: str, value: Value) -> Value:
        """An answer as the method expects it."""
