"""Method: how a federation trains and predicts; both halves of it in one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from colonnade.core.averages import ask_or_average
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.parties import Parties
from colonnade.core.party import Party

__all__ = ["Method", "MethodInfo"]


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """What people want to know of a method before they choose it."""

    name: str
    paper: str
    summary: str
    tolerates_slow: bool
    tolerates_missing: bool
    heterogeneous_models: bool
    private_labels: bool


class Method(ABC):
    """A way to train; a subclass is a frozen dataclass whose fields are its settings.

    ``exchange`` reads like the algorithm box of the paper. It keeps no state in the method:
    what must last goes into ``holder.memory`` or stays with the parties.
    """

    info: ClassVar[MethodInfo]
    party: ClassVar[type[Party]]
    # Embeddings of different parties are added up or averaged, so they need one width.
    adds_embeddings: ClassVar[bool] = False
    # Brings all columns to one place: a baseline that no federation can have.
    pools_blocks: ClassVar[bool] = False
    # What parties send tells the label holder their columns: refused between organisations.
    shows_columns: ClassVar[bool] = False
    # Whatever is made of columns goes through the one encoder, where protections are.
    can_be_protected: ClassVar[bool] = True
    # Takes sums of embeddings (``parties.total``) where it can, so that they may be blinded.
    takes_sums: ClassVar[bool] = False

    @property
    def has_heads(self) -> bool:
        """Whether every party has a network from an embedding to the outputs, its "head"."""
        return False

    @property
    def has_fusion(self) -> bool:
        """Whether the label holder has a network of its own over the embeddings."""
        return True

    @property
    def shares_labels(self) -> bool:
        """Whether parties need labels of their own, by agreement beforehand."""
        return False

    @property
    def wants_packed(self) -> Mapping[str, Any] | None:
        """Settings of the compression that every party should use; none unless a method says so."""
        return None

    @abstractmethod
    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One exchange: everything between two moments at which a checkpoint may be taken."""

    async def begin(self, holder: LabelHolder, parties: Parties) -> None:  # noqa: B027
        """What happens once, before the first exchange; nothing unless a method says so."""

    async def predict(self, holder: LabelHolder, parties: Parties, batch: Batch) -> Tensor:
        """Raw outputs for a batch; by default the fusion of every party's embedding."""
        return holder.infer(await ask_or_average(parties, "infer", batch))

    async def predict_each(
        self, holder: LabelHolder, parties: Parties, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Raw outputs for a batch of every party that has a predictor of its own and the samples.

        None unless a method gives the parties predictors.
        """
        return {}

    def answer_from(
        self, holder: LabelHolder, parties: Parties, batch: Batch, each: Mapping[str, Tensor]
    ) -> Tensor | None:
        """What ``predict`` would give, from what ``predict_each`` gave; asks nobody again.

        Every question is a release of the samples. None, unless a method says so, if ``predict``
        has to ask for itself.
        """
        return None

    def used(
        self, observed: tuple[str, ...], names: tuple[str, ...], holder: LabelHolder
    ) -> tuple[str, ...]:
        """Whose blocks ``predict`` uses, of those that are there; all unless a method says so."""
        return observed

    def participants(self, names: tuple[str, ...], label_holder: str) -> tuple[str, ...]:
        """Which parties take part; all unless a method says otherwise."""
        return names

    def predictor_sets(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Sets of parties with networks of their own, by number (``core/party_sets``).

        None unless a method says so: then there is one predictor, of all parties.
        """
        return ()

    def refuses_sums(self, combine: str) -> str:
        """Why this method can't do with sums of embeddings; empty if it can.

        ``combine`` is how the label holder's fusion brings embeddings together.
        """
        if not self.takes_sums:
            return f"method '{self.info.name}' needs every party's embedding by itself"
        if self.has_fusion and combine != "mean":
            return f"fusion with combine = '{combine}' needs every party's embedding by itself"
        return ""

    def findings(self, holder: LabelHolder) -> Mapping[str, Any]:
        """What a run's summary should say of this method in particular."""
        return {}

    def exchanges_per_epoch(self, num_batches: int, num_parties: int) -> int:
        """How many exchanges go once through the training part."""
        return num_batches
