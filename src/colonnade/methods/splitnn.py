"""SplitNN: one network, cut between the parties and the label holder.

Paper: Vepakomma et al. 2018, as described in the thesis, section 4.1 (steps 1 to 7); U-shaped
variants are not built. Departures: messages are not encrypted by the method (steps 2, 3, 5, 6 of
the thesis); that is the fabric's business. Step 5 (gradient and index of the next batch in one
message) is how ``tell`` and the ``ask`` after it travel, so a step costs one round trip.
``pipelined`` is ours: see there.
"""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo, Needs
from colonnade.core.parties import Parties
from colonnade.parts.split_step import (
    SplitParty,
    pipelined_step,
    predict_by_fusion,
    request_embeddings,
    split_step,
)

__all__ = ["SplitNN"]


@dataclass(frozen=True, kw_only=True)
class SplitNN(Method):
    """Embeddings up, gradients down, every exchange (thesis 4.1).

    With ``pipelined`` the next batch's embeddings are asked for before this one's gradient is
    sent, so that two batches share a round trip; every embedding is then one step stale.
    """

    info = MethodInfo(
        name="splitnn",
        paper="SplitNN (Vepakomma et al. 2018); thesis 4.1",
        summary="one network cut between parties and label holder; one step per exchange",
    )
    party = SplitParty
    predict = predict_by_fusion

    pipelined: bool = False

    @property
    def needs(self) -> Needs:
        """A sum will do, unless embeddings are asked for ahead and awaited one by one."""
        return Needs(embeddings="each" if self.pipelined else "sum")

    async def begin(self, holder: LabelHolder, parties: Parties) -> None:
        """One batch ahead from the first on."""
        if self.pipelined:
            request_embeddings(parties, Batch("train", 0))

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Steps 1 to 6 of section 4.1."""
        if self.pipelined:
            await pipelined_step(holder, parties, batch)
        else:
            await split_step(holder, parties, batch)
