"""Ensemble: local models, and a majority vote of those that have the sample.

Paper: LASER-VFL's baseline "Ensemble" (section 5): trained as Local; predictions are shared and the
majority decides, ties at random. Departures:

1. Parties without labels train by gradients from the label holder, as in ``local``.
2. A regression has no majority: the mean of the numbers is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from colonnade.core.errors import MissingBlock
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, MethodInfo
from colonnade.core.parties import Parties
from colonnade.parts.guessing import voted
from colonnade.parts.own_models import OwnModels

__all__ = ["Ensemble"]


@dataclass(frozen=True, kw_only=True)
class Ensemble(OwnModels):
    """A model at every party, and the majority of the parties that have the sample."""

    info = MethodInfo(
        name="ensemble",
        paper="baseline (LASER-VFL: Ensemble)",
        summary="every party trains by itself; whoever has the sample votes, the majority decides",
        tolerates_missing=True,
    )

    async def predict(
        self, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
    ) -> Answer:
        """The majority of those who have the samples."""
        here = holder.observed(batch, parties.names)
        votes = await parties.ask("conclude", batch, among=here.names)
        here = here.among(votes)
        if not votes or int(here.counts.min()) == 0:
            raise MissingBlock(f"nobody answered for batch {batch.number} of part '{batch.part}'")
        return Answer(outputs=voted(holder, batch, votes, here), each=votes, used=tuple(votes))

    def kept_apart(
        self, part: str, table: Tensor, names: tuple[str, ...], label_holder: str
    ) -> Tensor | None:
        """Nobody: everybody who has a sample votes on it."""
        return None
