"""Predictions: answers to batches of a part as one, in the part's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer
from colonnade.core.presence import Observed

__all__ = ["Predicted", "Predictions", "joined"]


class Predicted(NamedTuple):
    """Raw outputs of one predictor, and the positions of the samples that they are for."""

    positions: Tensor
    outputs: Tensor


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions for a part, in the part's order.

    Attributes:
        outputs: The federation's raw outputs.
        each: The raw outputs of every party that has a predictor of its own.
        used: The parties whose blocks were used, for every sample.
    """

    outputs: Tensor
    each: Mapping[str, Predicted]
    used: Sequence[tuple[str, ...]]


def joined(
    holder: LabelHolder,
    names: tuple[str, ...],
    part: str,
    plan: BatchPlan,
    answers: Mapping[int, Answer],
) -> Predictions:
    """Join answers to batches of a part.

    Args:
        holder: Who knows which samples have which blocks.
        names: The parties.
        part: Its name.
        plan: Its batches.
        answers: By number; samples of batches without an answer are left out.

    Returns:
        One row for every sample with an answer, in the part's order.
    """
    if not answers:
        return Predictions(outputs=torch.zeros(0), each={}, used=[])
    numbers = sorted(answers)
    positions = [plan.positions(number) for number in numbers]
    used: list[tuple[str, ...]] = []
    found: dict[str, list[Predicted]] = {}
    for number, own in zip(numbers, positions, strict=True):
        here = holder.observed(Batch(part, number), names)
        used += _used(answers[number].used, here, len(own))
        for name, outputs in answers[number].each.items():
            there = own if here.is_complete else own[here.rows[name]]
            found.setdefault(name, []).append(Predicted(there, outputs))
    outputs = torch.cat([answers[number].outputs for number in numbers])
    if not plan.is_in_order:
        order = torch.cat(positions).argsort()
        outputs, used = outputs[order], [used[place] for place in order.tolist()]
    return Predictions(
        outputs=outputs,
        each={
            name: Predicted(*(torch.cat(item) for item in zip(*found[name], strict=True)))
            for name in sorted(found)
        },
        used=used,
    )


def _used(names: tuple[str, ...], here: Observed, num_samples: int) -> list[tuple[str, ...]]:
    """For every sample of a batch those of these parties that have it."""
    if here.table is None:
        return [names] * num_samples
    columns = [(place, name) for place, name in enumerate(here.names) if name in names]
    return [tuple(name for place, name in columns if row[place]) for row in here.table.tolist()]
