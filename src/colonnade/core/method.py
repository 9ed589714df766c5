"""Method: how a federation trains and predicts; both halves of it in one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.parties import Parties
from colonnade.core.party import Party
from colonnade.core.releases import Kind

__all__ = ["Answer", "Method", "MethodInfo", "Needs"]


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """A method's description, for people who choose one.

    Attributes:
        name: Its name in settings.
        paper: The paper and where in it.
        summary: One line.
        tolerates_slow: Whether a slow party delays nobody else.
        tolerates_missing: Whether it uses samples that some parties don't have.
        heterogeneous_models: Whether parties may have different networks.
        alone: The verbs by which a party with a head answers from its own block alone. The first
            takes a batch, each other what the one before gave.
    """

    name: str
    paper: str
    summary: str
    tolerates_slow: bool = False
    tolerates_missing: bool = False
    heterogeneous_models: bool = True
    alone: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a method needs of parties, labels and sums.

    Attributes:
        embeddings: Whether the label holder needs each party's embedding by itself, or a sum over
            parties (``parties.total``) will do, so that embeddings may be blinded.
        one_width: Whether embeddings are added up or averaged, so that all have one width.
        heads: Whether every party has a network from an embedding to outputs, its "head".
        fusion: Whether the label holder has a network of its own over the embeddings.
        labels: Whether labels stay with the label holder, or parties have them by agreement.
        pooled: Whether all columns come to one place: a baseline that no federation can have.
        protectable: Whether everything made of columns goes through ``Party.encode`` or
            ``Party.infer``, where protections act.
        packing: Settings of the compression that every party should use.
    """

    embeddings: Literal["each", "sum"] = "each"
    one_width: bool = False
    heads: bool = False
    fusion: bool = True
    labels: Literal["private", "shared"] = "private"
    pooled: bool = False
    protectable: bool = True
    packing: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A prediction for one batch.

    Attributes:
        outputs: The federation's raw outputs, a row per sample.
        each: The raw outputs of every party that has a predictor of its own: a row per sample that
            the party has.
        used: The parties whose blocks ``outputs`` was made from, each for the samples that it has;
            empty for a guess.
    """

    outputs: Tensor
    each: Mapping[str, Tensor] = field(default_factory=dict)
    used: tuple[str, ...]


class Method(ABC):
    """A way to train; a subclass is a frozen dataclass whose fields are its settings.

    ``exchange`` reads like the algorithm box of the paper. It keeps no state in the method: what
    must last goes into ``holder.memory`` or stays with the parties. A subclass must have ``info``,
    ``party``, ``exchange`` and ``predict``; everything else has a default.
    """

    info: ClassVar[MethodInfo]
    party: ClassVar[type[Party]]

    @property
    def needs(self) -> Needs:
        """What the method needs of everybody; a subclass may set it as a plain attribute."""
        return Needs()

    @abstractmethod
    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One exchange: everything between two moments at which a checkpoint may be taken.

        Args:
            holder: The label holder: labels, fusion model, memory.
            parties: All parties, through their links.
            batch: The training batch whose turn it is.
        """

    @abstractmethod
    async def predict(
        self, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
    ) -> Answer:
        """Predict one batch.

        Args:
            holder: The label holder.
            parties: All parties, through their links.
            batch: The samples.
            each: Whether the answers of all parties' own predictors are wanted too. Every question
                releases samples, so a method asks nobody in vain.

        Returns:
            The outputs, and the blocks that they were made from.

        Raises:
            MissingBlock: If a block that the method needs did not come.
        """

    async def begin(self, holder: LabelHolder, parties: Parties) -> None:  # noqa: B027
        """Do what happens once, before the first exchange.

        Args:
            holder: The label holder.
            parties: All parties, through their links.
        """

    def participants(self, names: tuple[str, ...], label_holder: str) -> tuple[str, ...]:
        """Choose the parties that take part.

        Args:
            names: All parties, in party order.
            label_holder: The label holder's name, which may be among them.

        Returns:
            Some of ``names``, or the label holder alone.
        """
        return names

    def kept_apart(
        self, part: str, table: Tensor, names: tuple[str, ...], label_holder: str
    ) -> Tensor | None:
        """Say which samples of a part must not share a batch, where blocks are missing.

        Args:
            part: Its name.
            table: Whether each sample is there: a row per sample, a column per party.
            names: The parties, in party order.
            label_holder: The label holder's name, which may be among them.

        Returns:
            A number per sample: those with different ones have different batches. None if any
            samples may share a batch.
        """
        return None

    def predictor_sets(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Sets of parties with networks of their own, by number (``parts/party_sets``).

        Args:
            names: All parties, in party order.

        Returns:
            Empty if there is one predictor, of all parties.
        """
        return ()

    def findings(self, holder: LabelHolder) -> Mapping[str, Any]:
        """What a run's summary should say of this method in particular.

        Args:
            holder: The label holder, whose memory may hold counts.

        Returns:
            Plain values for JSON, by name.
        """
        return {}

    def exchanges_per_epoch(self, num_batches: int, num_parties: int) -> int:
        """How many exchanges go once through the training part.

        Args:
            num_batches: Batches of the training part.
            num_parties: Parties that take part.

        Returns:
            The number of exchanges, at least 1.
        """
        return num_batches

    @property
    def most_local_steps(self) -> int:
        """How many local steps a party takes on one embedding at most.

        By default what a setting ``local_steps`` says, or one.
        """
        steps: int = getattr(self, "local_steps", 1)
        return steps

    @property
    def stays_home(self) -> bool:
        """Whether columns and labels stay where they are, as they must between organisations."""
        releases = [known.releases for known in self.party.verbs.values()]
        needs = self.needs
        return not needs.pooled and needs.labels == "private" and Kind.COLUMNS not in releases
