"""Methods whose parties have whole models over their own columns: how those train and answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from colonnade.core.errors import MissingBlock
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method, Needs
from colonnade.core.parties import Parties, each
from colonnade.core.releases import OwnOutput
from colonnade.core.verbs import verb
from colonnade.parts.headed_party import HeadedParty

__all__ = ["OwnModelParty", "OwnModels"]


class OwnModelParty(HeadedParty):
    """The silo's half: an encoder and a head over its own columns."""

    @verb
    def predict(self, batch: Batch) -> OwnOutput:
        """Send the own model's outputs, which wait for their gradient.

        Args:
            batch: The samples.

        Returns:
            Raw outputs, a row per sample.
        """
        return self.predict_from(batch, self.encode(batch))

    @verb
    def conclude(self, batch: Batch) -> OwnOutput:
        """Send the own model's outputs for prediction.

        Args:
            batch: The samples.

        Returns:
            Raw outputs, a row per sample.
        """
        return self.conclude_from(self.infer(batch))


@dataclass(frozen=True, kw_only=True)
class OwnModels(Method):
    """What such methods have in common; asked for one answer, one party's model gives it."""

    party = OwnModelParty
    needs = Needs(heads=True, fusion=False)

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One step of every model on the samples that its party has; none depends on another.

        Args:
            holder: The label holder.
            parties: All parties.
            batch: The samples.
        """
        here = holder.observed(batch, parties.names)
        predictions = await parties.ask("predict", batch, among=here.names)
        if not predictions:
            return  # nobody answered, and the run's patience is to go on
        gradients = holder.judge(predictions, batch)
        await parties.tell("descend", batch, each(gradients), among=gradients)

    def kept_apart(
        self, part: str, table: Tensor, names: tuple[str, ...], label_holder: str
    ) -> Tensor | None:
        """Keep samples apart that different models answer for: nobody is asked in vain.

        Args:
            part: Its name.
            table: Whether each sample is there, a column per party.
            names: The parties.
            label_holder: The label holder's name.

        Returns:
            The place of the party that answers for each sample; None in training.
        """
        if part == "train":
            return None
        first = table.long().argmax(dim=1)
        if label_holder not in names:
            return first
        own = names.index(label_holder)
        return torch.where(table[:, own], own, first)

    async def predict(
        self, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
    ) -> Answer:
        """Predict by one party's model: the label holder's, or the first's that has the samples.

        Args:
            holder: The label holder.
            parties: All parties.
            batch: The samples.
            each: Whether the outputs of all parties that have the samples are wanted too.

        Returns:
            That party's outputs, and the others' if wanted.

        Raises:
            MissingBlock: If that party did not answer.
        """
        here = holder.observed(batch, parties.names)
        # Every sample of the batch has the same one (``kept_apart``).
        able = [name for name in here.names if len(here.rows[name]) == here.num_samples]
        who = holder.name if holder.name in able else able[0]
        answers = await parties.ask("conclude", batch, among=here.names if each else [who])
        if who not in answers:
            raise MissingBlock(f"party '{who}' did not answer; its own model was asked")
        return Answer(outputs=answers[who], each=answers if each else {}, used=(who,))
