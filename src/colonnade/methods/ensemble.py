"""Ensemble: local models, and a majority vote of those that have the sample.

Paper: LASER-VFL's baseline "Ensemble" (section 5): trained as Local; predictions are shared and the
majority decides, ties at random. Departures:

1. Parties without labels train by gradients from the label holder, as in ``local``.
2. A regression has no majority: the mean of the numbers is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from colonnade.core.guessing import voted
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import MethodInfo
from colonnade.core.own_models import OwnModels
from colonnade.core.parties import Parties

__all__ = ["Ensemble"]


@dataclass(frozen=True, kw_only=True)
class Ensemble(OwnModels):
    """A model at every party, and the majority of the parties that have the sample."""

    info = MethodInfo(
        name="ensemble",
        paper="baseline (LASER-VFL: Ensemble)",
        summary="every party trains by itself; whoever has the sample votes, the majority decides",
        tolerates_slow=False,
        tolerates_missing=True,
        heterogeneous_models=True,
        private_labels=True,
    )

    async def predict(self, holder: LabelHolder, parties: Parties, batch: Batch) -> Tensor:
        """The majority of those who have the samples."""
        return voted(holder, batch, await self.predict_each(holder, parties, batch))

    def answer_from(
        self, holder: LabelHolder, parties: Parties, batch: Batch, each: Mapping[str, Tensor]
    ) -> Tensor:
        """The majority of those who answered."""
        return voted(holder, batch, each)

    def used(
        self, observed: tuple[str, ...], names: tuple[str, ...], holder: LabelHolder
    ) -> tuple[str, ...]:
        """Everybody votes."""
        return observed
