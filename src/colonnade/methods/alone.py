"""Alone: one party's columns and nobody else's; what each would have without a federation.

Paper: the thesis's "centralized worker 0 data" (Table 6.1), EASTER's and LASER-VFL's "Local".
Departures: a party other than the label holder needs labels to train alone; here the label holder
gives it gradients instead, as in SplitNN with one party, so that labels are not sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.core.errors import ConfigError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo
from colonnade.core.parties import Parties
from colonnade.parts.split_step import SplitParty, predict_by_fusion, split_step

__all__ = ["Alone"]


@dataclass(frozen=True, kw_only=True)
class Alone(Method):
    """One party by itself; the label holder unless ``who`` names another."""

    info = MethodInfo(
        name="alone",
        paper="baseline (thesis 5.4.3; EASTER and LASER-VFL: Local)",
        summary="one party's columns only; the label holder's unless another is named",
        tolerates_slow=True,
        tolerates_missing=True,
    )
    party = SplitParty
    predict = predict_by_fusion

    who: str | None = None

    def participants(self, names: tuple[str, ...], label_holder: str) -> tuple[str, ...]:
        """Just the one."""
        who = self.who or label_holder
        if who not in names:
            hint = "has no block of its own" if who == label_holder else "is not a party"
            raise ConfigError(f"method.who: '{who}' {hint}; name one of {list(names)}")
        return (who,)

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One ordinary step on that party's columns."""
        await split_step(holder, parties, batch)
