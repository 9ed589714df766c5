"""AggVFL: every party predicts from its own columns, and the predictions are added up.

Paper: the family that EASTER calls aggVFL (section 1, figure 1b; baselines Agg_VFL, Homo_aggVFL
and Heter_aggVFL of its Tables 2 and 3); nothing is trained above the parties. Departures:

1. EASTER's Agg_VFL is Zhang et al. 2022, which also weighs parties by how many columns they have;
   here all count alike.
2. What is aggregated are logits (or the number itself in a regression), not probabilities: the
   papers leave it open, and a sum of logits is what the logistic regressions of this family use.
3. The label holder asks for the sum alone. The derivative of the loss by it is the same for all
   parties, so nobody's own prediction has to be known to anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method, MethodInfo, Needs
from colonnade.core.parties import Parties, Total
from colonnade.parts.own_models import OwnModelParty

__all__ = ["AggVFL"]


@dataclass(frozen=True, kw_only=True)
class AggVFL(Method):
    """One prediction: the sum or the mean of what each party predicts."""

    info = MethodInfo(
        name="aggvfl",
        paper="baseline (EASTER: Agg_VFL, Homo_aggVFL, Heter_aggVFL)",
        summary="whole models at the parties; their predictions are added up, nothing above them",
    )
    party = OwnModelParty
    needs = Needs(embeddings="sum", heads=True, fusion=False)

    aggregate: Literal["mean", "sum"] = "mean"

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Predictions up, one gradient down, everyone updates."""
        total = await parties.total("predict", batch)
        share = self._share(total)
        (gradient,) = holder.judge({"all": total.value * share}, batch).values()
        await parties.tell("descend", batch, gradient * share, among=total.names)

    async def predict(
        self, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
    ) -> Answer:
        """The aggregate of every party's outputs."""
        total = await parties.total("conclude", batch)
        return Answer(outputs=total.value * self._share(total), used=total.names)

    def _share(self, total: Total) -> float:
        """What one party's prediction counts."""
        return 1.0 / len(total.names) if self.aggregate == "mean" else 1.0
