"""The step that split networks share: embeddings up, gradients down, everyone updates.

Where only the sum of the embeddings is known, their mean stands for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method
from colonnade.core.parties import Parties, each
from colonnade.core.party import Party
from colonnade.core.releases import Derivative, Embedding
from colonnade.core.verbs import verb

__all__ = [
    "Ahead",
    "SplitParty",
    "ask_or_average",
    "fused_gradients",
    "pipelined_step",
    "predict_by_fusion",
    "request_embeddings",
    "split_step",
]


class SplitParty(Party):
    """The silo's half: θ_k and x_k never leave it."""

    @verb
    def embed(self, batch: Batch) -> Embedding:
        """Send h_k(θ_k; x_k).

        Args:
            batch: The samples.

        Returns:
            A row per sample.
        """
        return self.encode(batch)

    @verb
    def descend(self, batch: Batch, gradient: Derivative) -> None:
        """Take one step along dL/dh_k, the ``gradient`` of this ``batch``."""
        self.begin_local_steps()
        self.step(self.encode(batch), gradient)


async def ask_or_average(parties: Parties, verb: str, *arguments: Any) -> dict[str, Tensor]:
    """Ask for every party's embedding; or, where only sums are known, for their mean.

    A fusion that averages its inputs gives the same outputs for the mean alone.

    Args:
        parties: All parties.
        verb: The verb that gives the embedding.
        arguments: Its arguments.

    Returns:
        Embeddings by party, or the mean under the first party's name.
    """
    if not parties.sums_only:
        return await parties.ask(verb, *arguments)
    total = await parties.total(verb, *arguments)
    return {total.names[0]: total.value * (1.0 / len(total.names))}


async def fused_gradients(
    holder: LabelHolder, parties: Parties, verb: str, batch: Batch, *arguments: Any
) -> dict[str, Tensor]:
    """Embeddings up, one update of the fusion model.

    Args:
        holder: The label holder.
        parties: All parties.
        verb: The verb that gives the embedding.
        batch: The samples, and the verb's first argument.
        arguments: Its further arguments.

    Returns:
        dL/dh_k for every party that took part.
    """
    if not parties.sums_only:
        return holder.learn(await parties.ask(verb, batch, *arguments), batch)
    total = await parties.total(verb, batch, *arguments)
    share = 1.0 / len(total.names)
    # The mean's gradient is every party's own, but for the factor 1/n.
    (gradient,) = holder.learn({total.names[0]: total.value * share}, batch).values()
    return dict.fromkeys(total.names, gradient * share)


async def predict_by_fusion(
    method: Method, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
) -> Answer:
    """The fusion of every party's embedding: ``predict`` of methods without predictors per party.

    Args:
        method: Whose ``predict`` this is.
        holder: The label holder.
        parties: All parties.
        batch: The samples.
        each: Not looked at: no party has a predictor of its own.

    Returns:
        The fusion model's outputs, made from every block.
    """
    outputs = holder.infer(await ask_or_average(parties, "infer", batch))
    return Answer(outputs=outputs, used=parties.names)


@dataclass
class Ahead:
    """Embeddings of the next batch that came before their turn."""

    embeddings: dict[str, Tensor] = field(default_factory=dict)


async def split_step(holder: LabelHolder, parties: Parties, batch: Batch) -> None:
    """One step of the joint network, as if it were in one place.

    Args:
        holder: The label holder.
        parties: All parties, with the verbs of ``SplitParty``.
        batch: The samples.
    """
    gradients = await fused_gradients(holder, parties, "embed", batch)
    await parties.tell("descend", batch, each(gradients), among=gradients)


def request_embeddings(parties: Parties, batch: Batch) -> None:
    """Ask everybody for an embedding, and wait for nothing."""
    for name in parties.names:
        parties.start(name, "embed", batch)


async def pipelined_step(holder: LabelHolder, parties: Parties, batch: Batch) -> None:
    """The same with embeddings that are one step stale: two batches are on their way at a time.

    The embeddings of the batch were asked for one step ago; those of the next one are asked for
    here, before the gradient that would change them.
    """
    request_embeddings(parties, Batch(batch.part, batch.number + 1))
    early: dict[str, Tensor] = {}
    ahead = holder.memory.recall(Ahead)
    come = ahead.embeddings
    while len(come) < len(parties.names):
        arrival = await parties.arrival()
        if arrival is None:
            raise parties.nobody_answered()
        # A party answers in order: its second answer is for the next batch.
        (early if arrival.party in come else come)[arrival.party] = arrival.value
    ahead.embeddings = early
    gradients = holder.learn({name: come[name] for name in parties.names}, batch)
    await parties.tell("descend", batch, each(gradients), among=gradients)
