"""Centralized: all columns in one place; the ideal that no federation can have.

Paper: the thesis, section 5.4.3: one network with as many neurons in each layer as all the
parties' networks together, fully connected. Departures: none known. It needs every block in this
process and is refused on a fabric that crosses organisations.
"""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo, Needs
from colonnade.core.parties import Parties
from colonnade.parts.split_step import SplitParty, predict_by_fusion, split_step

__all__ = ["Centralized"]


@dataclass(frozen=True, kw_only=True)
class Centralized(Method):
    """One network over all columns, trained where the labels are."""

    info = MethodInfo(
        name="centralized",
        paper="baseline (thesis 5.4.3)",
        summary="all columns in one place: the unreachable ideal, for comparison",
        tolerates_slow=True,
        heterogeneous_models=False,
    )
    party = SplitParty
    predict = predict_by_fusion
    needs = Needs(pooled=True)

    def participants(self, names: tuple[str, ...], label_holder: str) -> tuple[str, ...]:
        """The label holder, with everybody's columns."""
        return (label_holder,)

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One ordinary step on all columns."""
        await split_step(holder, parties, batch)
