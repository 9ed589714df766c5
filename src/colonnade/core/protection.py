"""A protection at a door, and what a door tells it.

A protection acts at two places: on an embedding as soon as the encoder has made it (``encoded``;
whatever a method makes of the embedding is then covered too), and on a tensor as it leaves
(``leaving``). Neither reaches inside a network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from colonnade.core.batches import Batches
from colonnade.core.messages import Batch, Call
from colonnade.core.releases import ABOUT_COLUMNS, Kind
from colonnade.core.verbs import VerbSet

__all__ = [
    "Encoding",
    "Leaving",
    "Notes",
    "PeopleAccount",
    "Protection",
    "Reading",
    "Release",
]


class Encoding(NamedTuple):
    """One embedding that a party makes: for what, which one, of which samples.

    ``plan`` gives the positions of a batch that the party has: a row of the embedding for each.
    ``people`` has the person of every position of the part, where the party keeps account of them;
    below 0 for samples that it does not have.
    """

    purpose: str
    number: int
    batch: Batch
    plan: Batches
    people: Tensor | None = None


class Release(NamedTuple):
    """A release with noise: its name, which no other has, and the μ² that it costs."""

    name: bytes
    spent: float


@dataclass(frozen=True, slots=True)
class Leaving:
    """One tensor at a door.

    Attributes:
        kind: What the verb declares that it tells.
        value: The tensor.
        call: The call that it answers or is an argument of.
        encoding: The encoding that made it: of several in one answer, in the order in which they
            were made. None at the label holder, and where it can't be told.
    """

    kind: Kind
    value: Tensor
    call: Call
    encoding: Encoding | None = None


class Reading(Protocol):
    """The far end of a protection: reads what the near end wrote."""

    @property
    def covers(self) -> frozenset[Kind]:
        """The kinds of tensors that it writes and reads."""

    def read(self, value: Tensor) -> Tensor:
        """The tensor as a method expects it."""


class Protection(VerbSet):
    """One protection at one door. Every method has a default: a subclass overrides what it does."""

    kind: str = ""
    covers: frozenset[Kind] = ABOUT_COLUMNS
    # Whether it changes embeddings when they are made, and so has part in all that leaves.
    acts_when_made: ClassVar[bool] = False
    # Whether it makes the gradients that weights move by.
    acts_on_steps: ClassVar[bool] = False
    # Whether it can send a tensor as part of a sum over parties.
    adds_up: ClassVar[bool] = False

    def encoded(self, embedding: Tensor, encoding: Encoding) -> Tensor:
        """Protect an embedding that was just made.

        Args:
            embedding: As the encoder gave it, with its graph.
            encoding: For what it was made, and of which samples.

        Returns:
            The embedding that the method works with; its graph goes through.
        """
        return embedding

    def entering(self, call: Call) -> None:
        """Look at a call before it runs; raise Refused or ProtocolError if it must not.

        Args:
            call: The call, its arguments checked by type.
        """

    def leaving(self, item: Leaving) -> Tensor:
        """Transform a tensor of a kind that is covered, or raise Refused.

        Args:
            item: The tensor, and where it comes from.

        Returns:
            The tensor that leaves in its place.
        """
        return item.value

    def differentiate(
        self,
        output: Tensor,
        gradient: Tensor,
        parameters: Sequence[nn.Parameter],
        encoding: Encoding,
        further: Sequence[tuple[nn.Parameter, Tensor]],
    ) -> None:
        """Give every parameter the gradient of a local step, in place of back-propagation.

        Args:
            output: What the gradient is of, with its graph; a row per sample.
            gradient: The derivative of the loss by it.
            parameters: The weights that will move.
            encoding: Which samples, and the number of the step.
            further: Gradients by which weights would move besides.

        Raises:
            NotImplementedError: It does not act on steps.
        """
        raise NotImplementedError

    def account(self, made: Sequence[Encoding]) -> list[Any]:
        """Charge for the release of these encodings, or raise BudgetSpent.

        Args:
            made: The encodings made for one answer.

        Returns:
            What the ledger says of those that did not leave before.
        """
        return []

    def release(self, encoding: Encoding) -> Release | None:
        """Tell what the release of an encoding is called, and what it costs those in it.

        Args:
            encoding: One that ``encoded`` was given.

        Returns:
            None if no noise bounds what it tells.
        """
        return None

    def price(self) -> float:
        """Tell what every release costs those in it.

        Returns:
            Its μ²; 0 if no noise bounds what it tells.
        """
        return 0.0

    def spent(self) -> Mapping[str, float]:
        """Tell the privacy that the releases so far cost.

        Returns:
            Numbers by name; empty without a guarantee.
        """
        return {}

    def recall(self, entries: Iterator[Mapping[str, Any]]) -> None:
        """Take up what a ledger says of earlier releases.

        Args:
            entries: The ledger's entries, the oldest first.
        """

    def state(self) -> dict[str, Any]:
        """Give what a checkpoint must hold.

        Returns:
            Tensors and plain values by name.
        """
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back a state.

        Args:
            state: What ``state`` gave.
        """


class Notes(ABC):
    """A ledger as a door sees it."""

    @abstractmethod
    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one entry, or raise: then nothing leaves."""

    @abstractmethod
    def entries(self) -> Iterator[Mapping[str, Any]]:
        """The entries so far."""

    @abstractmethod
    def seal(self) -> Mapping[str, Any]:
        """Make it last; the number of entries and the last one's hash."""

    @abstractmethod
    def confirm(self, num_entries: int, head: str, *, party: str) -> None:
        """Raise Refused unless so many entries were here once, and ended with this hash."""


class PeopleAccount(ABC):
    """An account of people over everything that leaves, as a door sees it."""

    @abstractmethod
    def charge(self, name: bytes, people: Tensor, spent: float | None) -> bool:
        """Charge a release to everybody in it, or raise: then nothing leaves.

        Args:
            name: Of the release. One that was charged under this name is not charged again.
            people: The account's own numbers of them.
            spent: The μ² that it costs each; None if nothing bounds what it tells.

        Returns:
            Whether it was charged now.
        """

    @abstractmethod
    def take_up(self, name: bytes, people: Tensor, spent: float) -> None:
        """Charge a release that has left already, unless it was charged; never refuses."""

    @abstractmethod
    def seal(self) -> bytes:
        """Make it last; what tells it from an older copy of itself, for somebody else to keep."""

    @abstractmethod
    def confirm(self, seal: bytes) -> None:
        """Raise Refused if a seal tells of charges that are not here."""
