"""Standard: SplitNN on complete samples, and a random guess for all others.

Paper: LASER-VFL's baseline "Standard VFL" (equation (1) and section 5): trained on, and used for,
fully observed samples only; a random prediction is made elsewhere. Departures:

1. A guess is drawn from the run's seed and the batch, so the same question has the same answer. In
   a regression it is a normal number with the mean and spread of the training labels.
2. Complete samples have batches of their own. A batch of others is an exchange in which nobody is
   asked anything: an epoch has as many exchanges as for a method that learns from all samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from colonnade.core.errors import DataError, MissingBlock
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method, MethodInfo
from colonnade.core.parties import Parties
from colonnade.parts.guessing import guessed
from colonnade.parts.split_step import SplitParty, split_step

__all__ = ["Standard"]


@dataclass(frozen=True, kw_only=True)
class Standard(Method):
    """One network that needs every block; without one of them, a guess."""

    info = MethodInfo(
        name="standard",
        paper="baseline (LASER-VFL: Standard VFL)",
        summary="SplitNN on the samples that everybody has; a random guess for the others",
        tolerates_missing=True,
    )
    party = SplitParty

    async def begin(self, holder: LabelHolder, parties: Parties) -> None:
        """Refuse to train on nothing."""
        known = holder.presence.get("train")
        if known is not None and not bool(known.table.all(dim=1).any()):
            raise DataError(
                "no training sample is at every party, and method 'standard' learns from no "
                "other; use a method that does: laser, plug, ensemble, local"
            )

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One step of the joint network, if everybody has the samples."""
        here = holder.observed(batch, parties.names)
        if here.is_complete and here.names == parties.names:
            await split_step(holder, parties, batch)

    def kept_apart(
        self, part: str, table: Tensor, names: tuple[str, ...], label_holder: str
    ) -> Tensor | None:
        """Complete samples and others."""
        return table.all(dim=1)

    async def predict(
        self, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
    ) -> Answer:
        """The fusion of all embeddings, or a guess: also once a party has left."""
        here = holder.observed(batch, parties.names)
        if not here.is_complete or here.names != parties.names:
            return Answer(outputs=guessed(holder, batch, here.num_samples), used=())
        embeddings = await parties.ask("infer", batch)
        if parties.names == holder.trained_with(parties.names):
            return Answer(outputs=holder.infer(embeddings), used=parties.names)
        if not embeddings:
            raise MissingBlock(f"nobody answered for batch {batch.number} of part '{batch.part}'")
        num_samples = len(next(iter(embeddings.values())))
        return Answer(outputs=guessed(holder, batch, num_samples), used=())
