"""The step that split networks share: embeddings up, gradients down, everyone updates."""

from __future__ import annotations

from torch import Tensor

from colonnade.core.averages import fused_gradients
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.parties import Parties, each
from colonnade.core.party import Party
from colonnade.core.verbs import verb

__all__ = ["SplitParty", "split_step"]


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
