"""The step that split networks share: embeddings up, gradients down, everyone updates."""

from __future__ import annotations

from torch import Tensor

from colonnade.core.averages import fused_gradients
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.parties import Parties, each
from colonnade.core.party import Party
from colonnade.core.verbs import verb

__all__ = ["SplitParty", "pipelined_step", "request_embeddings", "split_step"]


class SplitParty(Party):
    """The silo's half: θ_k and x_k never leave it."""

    @verb
    def embed(self, batch: Batch) -> Tensor:
        """Send h_k(θ_k; x_k)."""
        return self.encode(batch)

    @verb
    def descend(self, batch: Batch, gradient: Tensor) -> None:
        """Take one step along dL/dh_k."""
        self.begin_local_steps()
        self.step(self.encode(batch), gradient)


async def split_step(holder: LabelHolder, parties: Parties, batch: Batch) -> None:
    """One step of the joint network, as if it were in one place."""
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
    come: dict[str, Tensor] = holder.memory.get("early", {})
    while len(come) < len(parties.names):
        arrival = await parties.arrival()
        if arrival is None:
            raise parties.nobody_answered()
        # A party answers in order: its second answer is for the next batch.
        (early if arrival.party in come else come)[arrival.party] = arrival.value
    holder.memory["early"] = early
    gradients = holder.learn({name: come[name] for name in parties.names}, batch)
    await parties.tell("descend", batch, each(gradients), among=gradients)
