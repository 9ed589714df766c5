"""Methods whose parties have whole models over their own columns: how those train and answer."""

from __future__ import annotations

from torch import Tensor

from colonnade.core.errors import MissingBlock
from colonnade.core.headed import HeadedParty
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.parties import Parties, each
from colonnade.core.verbs import verb

__all__ = ["OwnModelParty", "conclude_each", "own_model_step"]


class OwnModelParty(HeadedParty):
    """The silo's half: an encoder and a head over its own columns."""

    @verb
    def predict(self, batch: Batch) -> Tensor:
        """Send the own model's outputs, which wait for their gradient."""
        return self.predict_from(batch, self.encode(batch))

    @verb
    def conclude(self, batch: Batch) -> Tensor:
        """The own model's outputs for prediction."""
        return self.conclude_from(self.infer(batch))


async def own_model_step(holder: LabelHolder, parties: Parties, batch: Batch) -> None:
    """One step of every model whose party has the samples; none depends on another."""
    here = holder.observed(batch, parties.names)
    predictions = await parties.ask("predict", batch, among=here)
    if not predictions:
        return  # nobody answered, and the run's patience is to go on
    gradients = holder.judge(predictions, batch)
    await parties.tell("descend", batch, each(gradients), among=gradients)


async def conclude_each(holder: LabelHolder, parties: Parties, batch: Batch) -> dict[str, Tensor]:
    """Every present party's own outputs for a batch."""
    answers = await parties.ask("conclude", batch, among=holder.observed(batch, parties.names))
    if not answers:
        raise MissingBlock(f"nobody answered for batch {batch.number} of part '{batch.part}'")
    return answers
