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
from colonnade.core.method import Method, MethodInfo
from colonnade.core.parties import Parties
from colonnade.core.split_step import (
    SplitParty,
    pipelined_step,
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
        tolerates_slow=False,
        tolerates_missing=False,
        heterogeneous_models=True,
        private_labels=True,
    )
    party = SplitParty
    takes_sums = True

    pipelined: bool = False

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

    def refuses_sums(self, combine: str) -> str:
        """Sums are asked for and waited for in one; nothing is ahead then."""
        if self.pipelined:
            return "method 'splitnn' with pipelined = true needs every party's embedding by itself"
        return super().refuses_sums(combine)
