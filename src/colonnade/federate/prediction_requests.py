"""Requests for predictions, and the batches that follow from who has which of their samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from colonnade.core.batches import BatchPlan
from colonnade.core.label_holder import LabelHolder
from colonnade.core.presence import Presence
from colonnade.run.assembly import NEW
from colonnade.run.party_building import make_plans
from colonnade.run.samples import Roll, Rows, Table
from colonnade.run.spec import RunSpec

__all__ = ["Layout", "Layouts", "Request", "roll_of"]

# Layouts of so many samples at most are kept, and so many of them.
_FEW_SAMPLES, _MOST_LAYOUTS = 16, 256


@dataclass(frozen=True, kw_only=True)
class Request:
    """Samples to predict, in the order of the answer.

    ``numbers`` are those of the alignment. ``presence`` has a row per sample and a column per name
    of ``OpenModel.names``. ``own`` are the label holder's prepared rows, where it has a block, and
    ``own_rows`` the place of every sample among them; -1 where it has none. ``part`` is what the
    method calls these samples: what it draws at the label holder may depend on it.
    """

    part: str = NEW
    numbers: Rows
    presence: Table
    own: torch.Tensor | None = None
    own_rows: Rows | None = None


def roll_of(request: Request, name: str, names: tuple[str, ...]) -> Roll:
    """The samples of a request by their place, under a name."""
    return Roll(
        names=names,
        samples={name: np.arange(len(request.numbers))},
        presence={name: request.presence},
    )


class Layout(NamedTuple):
    """The batches of a request, and the label holder over its samples."""

    plan: BatchPlan
    holder: LabelHolder


class Layouts:
    """Makes the layouts of requests; those of few samples come again and again, and are kept.

    Args:
        spec: The run's settings.
        names: Everybody who may have samples.
        label_holder: The label holder's name.
        holder: The label holder.
    """

    def __init__(
        self, spec: RunSpec, names: tuple[str, ...], label_holder: str, holder: LabelHolder
    ) -> None:
        self._spec, self._names = spec, names
        self._label_holder, self._holder = label_holder, holder
        self._known: dict[tuple[str, bytes], Layout] = {}

    def of(self, request: Request, name: str) -> Layout:
        """The layout of a request, which goes by this name."""
        # Rows are of one length, so the bytes tell their number too.
        key = request.part, request.presence.tobytes()
        known = self._known.get(key)
        if known is not None:
            return known
        roll = roll_of(request, name, self._names)
        plan = make_plans(self._spec, roll, self._label_holder)[name]
        table = torch.from_numpy(request.presence.copy())
        presence = Presence(names=self._names, table=table, plan=plan)
        found = Layout(plan, self._holder.over({}, {request.part: presence}))
        if len(table) <= _FEW_SAMPLES and len(self._known) < _MOST_LAYOUTS:
            self._known[key] = found
        return found
