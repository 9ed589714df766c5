"""Calibration: how sure a prediction may be, by the number of blocks that it was made from.

Outputs are divided by a temperature (Guo et al. 2017), one per size of the observed set, fitted on
the validation part by the least log-loss. It is positive, so the decided class never changes. For a
number, what is kept is the error to expect: the root mean square on the validation part.
Departures: one temperature per set size where the paper has one in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import DataError
from colonnade.core.task import Task

__all__ = ["Calibration", "calibration_error", "fit_calibration", "fit_temperature"]

# Of fewer samples a temperature says more about chance than about the model.
FEWEST_SAMPLES = 50
# Beyond these a temperature only says that the validation part was too easy or too hard.
COLDEST, HOTTEST = 0.1, 10.0
_NUM_BINS = 15
_NUM_HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Temperatures, or spreads of a number, by set size; and for sizes with too few samples."""

    temperatures: Mapping[int, float]
    spreads: Mapping[int, float]
    # Over all sizes together; 1 if even those are too few.
    otherwise: float

    def sharpened(self, outputs: Tensor, sizes: Tensor) -> Tensor:
        """Logits as sure as they may be, each by the number of blocks that it came from."""
        return outputs.double() / self._each(self.temperatures, sizes)[:, None]

    def spread(self, sizes: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The error to expect of a predicted number, by the blocks that it came from."""
        found: np.ndarray[Any, np.dtype[np.float64]] = self._each(self.spreads, sizes).numpy()
        return found

    def _each(self, known: Mapping[int, float], sizes: Tensor) -> Tensor:
        values = [known.get(size, self.otherwise) for size in sizes.tolist()]
        return torch.tensor(values, dtype=torch.float64)


def fit_calibration(
    task: Task, outputs: Tensor, values: np.ndarray[Any, Any], sizes: Tensor
) -> Calibration:
    """Fit one temperature, or spread, per set size that has enough samples."""
    chosen = {
        size: (sizes == size).nonzero()[:, 0]
        for size in sorted(set(sizes.tolist()))
        if int((sizes == size).sum()) >= FEWEST_SAMPLES
    }
    if task.kind == "regression":
        errors = task.decide(outputs) - np.asarray(values, dtype=np.float64)
        spreads = {size: _spread(errors[rows.numpy()]) for size, rows in chosen.items()}
        return Calibration(temperatures={}, spreads=spreads, otherwise=_spread(errors))
    targets = _codes(task, values)
    enough = len(outputs) >= FEWEST_SAMPLES
    return Calibration(
        temperatures={
            size: fit_temperature(_logits(task, outputs[rows]), targets[rows])
            for size, rows in chosen.items()
        },
        spreads={},
        otherwise=fit_temperature(_logits(task, outputs), targets) if enough else 1.0,
    )


def fit_temperature(logits: Tensor, targets: Tensor) -> float:
    """The temperature with the least log-loss.

    The log-loss is convex in 1 / temperature: the place where its slope changes sign is found by
    halving, the same on every machine up to the last bits of the sums.
    """
    logits = logits.double()
    if not torch.isfinite(logits).all():
        raise DataError("outputs that are not finite can't be calibrated")
    own = logits.gather(1, targets[:, None])[:, 0].mean()

    def slope(inverse: float) -> float:
        expected = (torch.softmax(logits * inverse, dim=1) * logits).sum(dim=1)
        return float(expected.mean() - own)

    low, high = np.log(1.0 / HOTTEST), np.log(1.0 / COLDEST)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        if slope(float(np.exp(middle))) > 0:
            high = middle
        else:
            low = middle
    return float(np.exp(-(low + high) / 2))


def calibration_error(task: Task, outputs: Tensor, values: np.ndarray[Any, Any]) -> float:
    """Expected calibration error: confidence minus accuracy, in 15 bins of confidence."""
    scores = torch.softmax(_logits(task, outputs.double()), dim=1)
    confidence, decided = scores.max(dim=1)
    right = (decided == _codes(task, values)).double()
    bins = (confidence * _NUM_BINS).long().clamp(max=_NUM_BINS - 1)
    gaps = torch.zeros(_NUM_BINS, dtype=torch.float64)
    gaps.index_add_(0, bins, confidence - right)
    return float(gaps.abs().sum() / len(right))


def _logits(task: Task, outputs: Tensor) -> Tensor:
    """One column per class; of two classes the first one's logit is zero."""
    if task.kind == "multiclass":
        return outputs
    return torch.cat([torch.zeros_like(outputs), outputs], dim=1)


def _codes(task: Task, values: np.ndarray[Any, Any]) -> Tensor:
    return task.encode(values, torch.float64).long().flatten()


def _spread(errors: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean(errors**2)))
