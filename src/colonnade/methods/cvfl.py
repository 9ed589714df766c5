"""C-VFL: compressed embeddings, and several local steps per exchange.

Paper: Castiglia et al. 2022 (Compressed-VFL), Algorithm 1; C_VFL in EASTER's tables. Departures:

1. Labels are private: the label holder returns dL/dh_k, which stays fixed over the local steps, in
   place of all the compressed embeddings and the fusion model.
2. Compression is done by each party's own protection, which this method asks for; a party that has
   a compression of its own keeps that. Predictions are compressed too, as they would be in use.
3. Quantization is of one value at a time, between the least and the largest of its sample, rounded
   at random; the paper's lattice of two values at a time is not built. ``feedback`` is not in the
   paper.

Q: ``local_steps``. h_k: embedding of party k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from colonnade.core.errors import ConfigError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo, Needs
from colonnade.core.parties import Parties, each
from colonnade.parts.local_steps import LocalStepsParty
from colonnade.parts.split_step import predict_by_fusion

__all__ = ["CVFL"]


@dataclass(frozen=True, kw_only=True)
class CVFL(Method):
    """Compressed embeddings up, gradients down, then Q steps everywhere."""

    info = MethodInfo(
        name="cvfl",
        paper="C-VFL (Castiglia et al. 2022), Algorithm 1",
        summary="compressed embeddings, and several local steps per exchange; fewer bytes",
    )
    party = LocalStepsParty
    predict = predict_by_fusion

    local_steps: int = 10
    compression: Literal["quantize", "top_k", "random_k"] = "quantize"
    bits: int = 4
    keep: float = 0.25
    feedback: bool = False

    def __post_init__(self) -> None:
        if self.local_steps < 1:
            raise ConfigError(f"local_steps: must be at least 1, got {self.local_steps}")
        if self.bits not in (1, 2, 4, 8):
            raise ConfigError(f"bits: 1, 2, 4 or 8, got {self.bits}")
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep: a share above 0 and at most 1, got {self.keep}")

    @property
    def needs(self) -> Needs:
        """Embeddings that every party packs, unless it does so already."""
        size: dict[str, Any] = (
            {"bits": self.bits} if self.compression == "quantize" else {"keep": self.keep}
        )
        return Needs(packing={"kind": self.compression, "feedback": self.feedback, **size})

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One round of Algorithm 1: Q steps at the parties and at the label holder."""
        embeddings = await parties.ask("embed", batch)
        holder.begin_local_steps()
        gradients = holder.gradients(embeddings, batch)
        loss = holder.last_loss
        await parties.tell("descend", batch, each(gradients), self.local_steps, among=gradients)
        holder.step()
        for _ in range(self.local_steps - 1):
            holder.gradients(embeddings, batch)
            holder.step()
        holder.last_loss = loss  # of the exchange's start, as for every other method
