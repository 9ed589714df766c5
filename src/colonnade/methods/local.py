"""Local: every party trains and predicts by itself, on the samples that it has.

Paper: LASER-VFL's baseline "Local", equation (2) and section 5: h_k = g_k(f_k(x_k)). Departures:

1. The paper's clients all have the labels. Here a party needs none: it sends the outputs of its
   own model and the label holder answers with dL/d(outputs), which is the step that the party
   would take with labels of its own, bit for bit.
2. Asked for one answer per sample, the label holder's own model gives it where the label holder
   has the sample, or else the first party's that has it. The paper only has answers per party.
"""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.core.method import MethodInfo
from colonnade.parts.own_models import OwnModels

__all__ = ["Local"]


@dataclass(frozen=True, kw_only=True)
class Local(OwnModels):
    """A model at every party over its own columns; nobody uses anybody else's."""

    info = MethodInfo(
        name="local",
        paper="baseline (LASER-VFL: Local)",
        summary="every party by itself: its own model, trained and used wherever it has the sample",
        tolerates_missing=True,
    )
