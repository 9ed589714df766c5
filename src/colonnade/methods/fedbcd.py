"""FedBCD: several local steps per exchange, on a gradient that stays as it was received.

Paper: Liu et al. 2022 (FedBCD-p), as used in the thesis, sections 4.3.1 and 5.4.1. Departures: the
label holder takes one step per exchange, as in the thesis, where Liu et al. let every side take Q.

Q: ``local_steps``. h_k: embedding of party k; θ_k: its weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.core.errors import ConfigError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo, Needs
from colonnade.core.parties import Parties, each
from colonnade.parts.local_steps import LocalStepsParty
from colonnade.parts.split_step import fused_gradients, predict_by_fusion

__all__ = ["FedBCD"]


@dataclass(frozen=True, kw_only=True)
class FedBCD(Method):
    """Q local steps per exchange: fewer exchanges to the same quality, until Q is too large."""

    info = MethodInfo(
        name="fedbcd",
        paper="FedBCD (Liu et al. 2022); thesis 4.3.1",
        summary="several local steps per exchange on the gradient received; fewer exchanges",
    )
    party = LocalStepsParty
    predict = predict_by_fusion
    needs = Needs(embeddings="sum")

    local_steps: int = 5

    def __post_init__(self) -> None:
        if self.local_steps < 1:
            raise ConfigError(f"local_steps: must be at least 1, got {self.local_steps}")

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Embeddings up, gradients down, then Q steps at every party."""
        gradients = await fused_gradients(holder, parties, "embed", batch)
        await parties.tell("descend", batch, each(gradients), self.local_steps, among=gradients)
