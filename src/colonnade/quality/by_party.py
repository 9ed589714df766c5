"""Quality of every party's own predictor, and their average (LASER-VFL, appendix D)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from colonnade.core.federation import Predicted
from colonnade.core.task import Task

__all__ = ["measure_each"]


def measure_each(
    task: Task, each: Mapping[str, Predicted], values: np.ndarray[Any, Any]
) -> dict[str, float]:
    """The quality of every predictor on the samples that its party has, and averages.

    ``mean_accuracy`` averages over the predictors of a sample first, then over samples; every
    other mean is over the predictors.
    """
    measured = {
        name: task.measure(item.outputs, values[item.positions.numpy()])
        for name, item in each.items()
    }
    quality = {
        f"{task.quality_name}@{name}": found[task.quality_name] for name, found in measured.items()
    }
    shared = set.intersection(*(set(found) for found in measured.values()))
    means = {
        f"mean_{metric}": float(np.mean([found[metric] for found in measured.values()]))
        for metric in sorted(shared)
    }
    if "accuracy" in shared:
        right, asked = np.zeros(len(values)), np.zeros(len(values))
        for positions, outputs in each.values():
            places = positions.numpy()
            right[places] += task.decide(outputs) == values[places]
            asked[places] += 1
        means["mean_accuracy"] = float(np.mean(right[asked > 0] / asked[asked > 0]))
    return {**means, **quality}
