"""Local: every party trains and predicts by itself, on the samples that it has.

Paper: LASER-VFL's baseline "Local", equation (2) and section 5: h_k = g_k(f_k(x_k)). Departures:

1. The paper's clients all have the labels. Here a party needs none: it sends the outputs of its
   own model and the label holder answers with dL/d(outputs), which is the step that the party
   would take with labels of its own, bit for bit.
2. Asked for one answer per sample, the label holder's own model gives it where the label holder
   has the sample, or else the first party's that has it. The paper only has answers per party.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from colonnade.core.errors import MissingBlock
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo
from colonnade.core.own_models import OwnModelParty, conclude_each, own_model_step
from colonnade.core.parties import Parties

__all__ = ["Local"]


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """A model at every party over its own columns; nobody uses anybody else's."""

    info = MethodInfo(
        name="local",
        paper="baseline (LASER-VFL: Local)",
        summary="every party by itself: its own model, trained and used wherever it has the sample",
        tolerates_slow=False,
        tolerates_missing=True,
        heterogeneous_models=True,
        private_labels=True,
    )
    party = OwnModelParty
    has_heads = True
    has_fusion = False

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One step of every model on a batch that its party has."""
        await own_model_step(holder, parties, batch)

    async def predict(self, holder: LabelHolder, parties: Parties, batch: Batch) -> Tensor:
        """One party's outputs: the label holder's, or the first that has the samples."""
        here = holder.observed(batch, parties.names)
        (who,) = self.used(here, parties.names, holder)
        answers = await parties.ask("conclude", batch, among=[who])
        if who not in answers:
            raise MissingBlock(f"party '{who}' did not answer; its own model was asked")
        outputs: Tensor = answers[who]
        return outputs

    def answer_from(
        self, holder: LabelHolder, parties: Parties, batch: Batch, each: Mapping[str, Tensor]
    ) -> Tensor | None:
        """That one party's outputs, if it answered."""
        here = holder.observed(batch, parties.names)
        (who,) = self.used(here, parties.names, holder)
        return each.get(who)

    def used(
        self, observed: tuple[str, ...], names: tuple[str, ...], holder: LabelHolder
    ) -> tuple[str, ...]:
        """The label holder's block, or that of the first party that has the samples."""
        return (holder.name,) if holder.name in observed else observed[:1]

    async def predict_each(
        self, holder: LabelHolder, parties: Parties, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Every present party's own outputs."""
        return await conclude_each(holder, parties, batch)
