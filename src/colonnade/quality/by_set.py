"""Quality by observed set: how good predictions are from which blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.core.federation import Predicted
from colonnade.core.task import Task

__all__ = ["SetQuality", "by_set", "by_size", "set_sizes"]


@dataclass(frozen=True, kw_only=True)
class SetQuality:
    """The quality on the samples of one observed set, or of all sets of one size.

    ``each`` is that of every party's own predictor, where there are any; None where a metric says
    nothing, as R² does of one sample.
    """

    parties: tuple[str, ...]
    size: int
    num_samples: int
    quality: float | None
    each: Mapping[str, float | None]


def set_sizes(table: Tensor) -> Tensor:
    """How many parties have each sample."""
    return table.long().sum(dim=1)


def by_set(
    task: Task,
    outputs: Tensor,
    each: Mapping[str, Predicted],
    values: np.ndarray[Any, Any],
    names: Sequence[str],
    table: Tensor,
) -> list[SetQuality]:
    """One entry per observed set: the small ones first, then by the parties' order."""
    rows, group_of = torch.unique(table, dim=0, return_inverse=True)
    found = []
    for number, row in enumerate(rows.tolist()):
        parties = tuple(name for name, here in zip(names, row, strict=True) if here)
        found.append(_measured(task, outputs, each, values, group_of == number, parties))
    places = {name: place for place, name in enumerate(names)}
    return sorted(found, key=lambda item: (item.size, [places[name] for name in item.parties]))


def by_size(
    task: Task,
    outputs: Tensor,
    each: Mapping[str, Predicted],
    values: np.ndarray[Any, Any],
    table: Tensor,
) -> list[SetQuality]:
    """One entry per set size; its parties are not named, since they differ."""
    sizes = set_sizes(table)
    return [
        _measured(task, outputs, each, values, sizes == size, (), size=size)
        for size in sorted(set(sizes.tolist()))
    ]


def _measured(
    task: Task,
    outputs: Tensor,
    each: Mapping[str, Predicted],
    values: np.ndarray[Any, Any],
    chosen: Tensor,
    parties: tuple[str, ...],
    *,
    size: int | None = None,
) -> SetQuality:
    predictors = {}
    for name, item in each.items():
        here = chosen[item.positions]
        if here.any():
            own = values[item.positions[here].numpy()]
            predictors[name] = _quality(task, item.outputs[here], own)
    return SetQuality(
        parties=parties,
        size=len(parties) if size is None else size,
        num_samples=int(chosen.sum()),
        quality=_quality(task, outputs[chosen], values[chosen.numpy()]),
        each=predictors,
    )


def _quality(task: Task, outputs: Tensor, values: np.ndarray[Any, Any]) -> float | None:
    if task.kind == "regression":
        found = task.measure(outputs, values)[task.quality_name]
        return found if np.isfinite(found) else None
    # Accuracy by itself: the other metrics warn of classes that a small set does not have.
    return float(np.mean(task.decide(outputs) == values))
