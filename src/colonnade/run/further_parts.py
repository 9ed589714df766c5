"""Further parts for a federation that is there: new samples, or known ones seen otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from colonnade.core.batches import BatchPlan
from colonnade.core.federation import Federation
from colonnade.core.label_holder import LabelPart
from colonnade.run.assembly import TrainingData, presence_of
from colonnade.run.directory import local_parties
from colonnade.run.silo import make_parts, make_plans
from colonnade.run.spec import RunSpec

__all__ = ["lent", "seen_by"]


@contextmanager
def lent(
    federation: Federation, spec: RunSpec, data: TrainingData
) -> Iterator[Mapping[str, BatchPlan]]:
    """Give everybody these parts, for as long as the context lasts; with their labels, if any."""
    plans = make_plans(spec, data.roll)
    parties, holder = local_parties(federation), federation.holder
    dtype = next(holder.fusion.parameters()).dtype
    for name, features in data.features.items():
        parties[name].parts.update(make_parts(features, data.rows[name], name, data.roll, plans))
    holder.presence.update(presence_of(data.roll, plans))
    for part, values in data.labels.items():
        targets = holder.task.encode(values, dtype)
        holder.parts[part] = LabelPart(values=values, targets=targets, plan=plans[part])
    try:
        yield plans
    finally:
        for part in plans:
            holder.presence.pop(part, None)
            holder.parts.pop(part, None)
            for party in parties.values():
                party.parts.pop(part, None)


def seen_by(data: TrainingData, part: str, names: Collection[str], *, under: str) -> TrainingData:
    """A part as if only these parties were there; samples that none of them has are left out."""
    roll = data.roll
    there = np.array([name in names for name in roll.names])
    table = roll.presence[part] & there
    kept = table.any(axis=1)
    return replace(
        data,
        labels={under: data.labels[part][kept]},
        roll=replace(
            roll, samples={under: roll.samples[part][kept]}, presence={under: table[kept]}
        ),
    )
