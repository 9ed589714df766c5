"""The mistakes of a model: ROC, precision and recall, confusion, calibration, residuals.

Everything here is a count or a mean over many samples. Curves have few points, and a group of too
few samples is left out: a page with them can be shown around.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from colonnade.core.task import Task

__all__ = ["JUDGEMENT", "judge"]

# The file of a run directory that holds it.
JUDGEMENT = "judgement.json"

_MOST_POINTS = 50
_MOST_CLASSES = 20
_NUM_BINS = 10
# A mean over fewer samples says little about the model and much about those samples.
_FEWEST = 5

Array = np.ndarray[Any, Any]


def judge(task: Task, outputs: Tensor, values: Array, *, part: str) -> dict[str, Any]:
    """Look at predictions of a held-out part.

    Args:
        task: The task.
        outputs: Raw outputs.
        values: The labels.
        part: The part's name.

    Returns:
        JSON's types: ``part`` and ``num_samples``; of classes ``confusion`` (rows are true classes)
        and ``calibration``; of two classes ``roc`` and ``precision_recall`` as well; of numbers
        ``residuals``.
    """
    found: dict[str, Any] = {"part": part, "kind": task.kind, "num_samples": len(values)}
    if task.kind == "regression":
        numbers = np.asarray(values, dtype=np.float64)
        return found | {"residuals": _residuals(task.decide(outputs), numbers)}
    places = {str(item): place for place, item in enumerate(task.classes)}
    truth = np.array([places[str(item)] for item in np.asarray(values).tolist()])
    chances = task.probabilities(outputs)
    decided = np.array([places[str(item)] for item in task.decide(outputs).tolist()])
    if len(places) <= _MOST_CLASSES:
        counts = np.zeros((len(places), len(places)), dtype=int)
        np.add.at(counts, (truth, decided), 1)
        found["confusion"] = {"classes": list(places), "counts": counts.tolist()}
    if task.kind == "binary":
        found["calibration"] = _calibration(chances[:, 1], truth == 1)
        if 0 < truth.sum() < len(truth):
            found |= _ranked(truth, chances[:, 1])
    else:
        found["calibration"] = _calibration(chances.max(axis=1), truth == decided)
    return found


def _ranked(truth: Array, scores: Array) -> dict[str, Any]:
    from sklearn import metrics as sk

    false, true, _ = sk.roc_curve(truth, scores)
    precision, recall, _ = sk.precision_recall_curve(truth, scores)
    return {
        "roc": _points(false, true),
        "precision_recall": _points(recall[::-1], precision[::-1]),
    }


def _points(xs: Array, ys: Array) -> list[list[float]]:
    """At most so many points, evenly apart in x, with both ends."""
    if len(xs) <= _MOST_POINTS:
        places = np.arange(len(xs))
    else:
        wanted = np.linspace(float(xs[0]), float(xs[-1]), _MOST_POINTS - 2)
        places = np.unique([0, *np.searchsorted(xs, wanted, side="right") - 1, len(xs) - 1])
    return [[round(float(xs[n]), 4), round(float(ys[n]), 4)] for n in places]


def _calibration(said: Array, happened: Array) -> list[dict[str, float]]:
    """By how sure the model was: how often it was so."""
    bins = np.minimum((said * _NUM_BINS).astype(int), _NUM_BINS - 1)
    found = []
    for number in range(_NUM_BINS):
        here = bins == number
        if here.sum() >= _FEWEST:
            found.append(
                {
                    "said": round(float(said[here].mean()), 4),
                    "happened": round(float(happened[here].mean()), 4),
                    "num_samples": int(here.sum()),
                }
            )
    return found


def _residuals(decided: Array, truth: Array) -> dict[str, Any]:
    """Of true minus predicted: quantiles, and means by how large the prediction was."""
    left = truth - decided
    groups = []
    if len(truth) >= 2 * _FEWEST:
        order = np.argsort(decided, kind="stable")
        for places in np.array_split(order, min(_NUM_BINS, len(truth) // _FEWEST)):
            groups.append(
                {
                    "predicted": round(float(decided[places].mean()), 6),
                    "low": round(float(np.quantile(left[places], 0.1)), 6),
                    "middle": round(float(np.median(left[places])), 6),
                    "high": round(float(np.quantile(left[places], 0.9)), 6),
                    "num_samples": len(places),
                }
            )
    return {"mean": round(float(left.mean()), 6), "groups": groups}
