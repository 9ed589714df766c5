"""Methods whose parties have whole models over their own columns: how those train and answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from colonnade.core.errors import MissingBlock
from colonnade.core.headed import HeadedParty
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method
from colonnade.core.parties import Parties, each
from colonnade.core.verbs import verb

__all__ = ["OwnModelParty", "OwnModels"]


class OwnModelParty(HeadedParty):
    """The silo's half: an encoder and a head over its own columns."""

    @verb
    def predict(self, batch: Batch) -> Tensor:
        """Send the own model's outputs, which wait for their gradient."""
        return self.as_release(self.predict_from(batch, self.encode(batch)))

    @verb
    def conclude(self, batch: Batch) -> Tensor:
        """The own model's outputs for prediction."""
        return self.as_release(self.conclude_from(self.infer(batch)))


@dataclass(frozen=True, kw_only=True)
class OwnModels(Method):
    """What such methods have in common; asked for one answer, one party's model gives it."""

    party = OwnModelParty
    has_heads = True
    has_fusion = False

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One step of every model whose party has the samples; none depends on another."""
        here = holder.observed(batch, parties.names)
        predictions = await parties.ask("predict", batch, among=here)
        if not predictions:
            return  # nobody answered, and the run's patience is to go on
        gradients = holder.judge(predictions, batch)
        await parties.tell("descend", batch, each(gradients), among=gradients)

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
    ) -> dict[str, Tensor]:
        """Every present party's own outputs."""
        answers = await parties.ask("conclude", batch, among=holder.observed(batch, parties.names))
        if not answers:
            raise MissingBlock(f"nobody answered for batch {batch.number} of part '{batch.part}'")
        return answers
