"""Intervals of a metric, by drawing the held-out samples again and again (bootstrap)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from colonnade.core.task import Task

__all__ = ["interval_of"]

Array = np.ndarray[Any, Any]

_NUM_DRAWN = 400
_MOST_SAMPLES = 20_000


def interval_of(name: str, task: Task, outputs: Tensor, values: Array) -> tuple[float, float]:
    """The interval that holds a metric in 95 of 100 drawings of the samples.

    Args:
        name: The metric, as in ``Task.measure``.
        task: The task.
        outputs: Raw outputs of the held-out samples.
        values: Their labels.

    Returns:
        Lower and upper bound; NaN where the metric has no meaning.
    """
    if len(values) < 2:
        return float("nan"), float("nan")
    measure = _measure(name, task, outputs[:_MOST_SAMPLES], values[:_MOST_SAMPLES])
    draw = np.random.default_rng(0)
    count = min(len(values), _MOST_SAMPLES)
    found = np.array([measure(draw.integers(0, count, count)) for _ in range(_NUM_DRAWN)])
    found = found[np.isfinite(found)]
    if not len(found):
        return float("nan"), float("nan")
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def _measure(name: str, task: Task, outputs: Tensor, values: Array) -> Callable[[Array], float]:
    """The metric of some of the samples, without the cost of all the others."""
    if name == "accuracy":
        right = (task.decide(outputs) == np.asarray(values)).astype(np.float64)
        return lambda rows: float(right[rows].mean())
    if name == "r2":
        truth, found = np.asarray(values, dtype=np.float64), task.decide(outputs)
        return lambda rows: _r2(truth[rows], found[rows])
    if name == "auc" and task.kind == "binary":
        is_second = np.asarray(values) == task.classes[1]
        scores = outputs[:, 0].double().numpy()
        return lambda rows: _auc(is_second[rows], scores[rows])

    def measured(rows: Array) -> float:
        metrics: Mapping[str, float] = task.measure(outputs[rows], values[rows])
        return metrics.get(name, float("nan"))

    return measured


def _r2(truth: Array, found: Array) -> float:
    spread = float(((truth - truth.mean()) ** 2).sum())
    return 1 - float(((truth - found) ** 2).sum()) / spread if spread else float("nan")


def _auc(is_second: Array, scores: Array) -> float:
    """The share of pairs in the right order; ties count half."""
    from scipy.stats import rankdata

    num_second = int(is_second.sum())
    num_first = len(is_second) - num_second
    if not num_second or not num_first:
        return float("nan")
    ranks = float(rankdata(scores)[is_second].sum())
    return (ranks - num_second * (num_second + 1) / 2) / (num_second * num_first)
