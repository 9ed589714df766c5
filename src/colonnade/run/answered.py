"""Outputs of samples, and what they say: labels, probabilities, how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, MissingBlock
from colonnade.core.federation import Predictions
from colonnade.core.task import Task
from colonnade.quality.by_set import set_sizes
from colonnade.quality.calibration import Calibration

__all__ = ["Answered", "outputs_of"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Raw outputs of samples, a row per sample.

    Attributes:
        outputs: The federation's raw outputs.
        used: The parties whose blocks were used.
        presence: Who has which sample.
        task: What is predicted.
        calibration: How sure outputs may be; none if the run has none.
    """

    outputs: Tensor
    used: Sequence[tuple[str, ...]]
    presence: np.ndarray[Any, np.dtype[np.bool_]]
    task: Task
    calibration: Calibration | None

    def values(self) -> Array:
        """The label or the number of every sample."""
        return self.task.decide(self.outputs)

    def probabilities(self) -> Array:
        """A column per class, calibrated by the number of blocks that each sample has."""
        outputs = self.outputs
        if self.calibration is not None and self.task.kind != "regression":
            outputs = self.calibration.sharpened(outputs, self._sizes())
        return self.task.probabilities(outputs)

    def confidence(self, probabilities: Array) -> Array:
        """The calibrated probability of each sample's label."""
        places = self.task.places(self.outputs)
        found: Array = probabilities[np.arange(len(probabilities)), places]
        return found

    def spread(self) -> Array:
        """The error to expect of each number, from as many blocks; NaN if the run has none."""
        if self.calibration is None:
            return np.full(len(self.outputs), np.nan)
        return self.calibration.spread(self._sizes())

    def _sizes(self) -> Tensor:
        """How many blocks each sample has."""
        return set_sizes(torch.from_numpy(self.presence))


def outputs_of(model: str | None, predicted: Predictions, method: str) -> Tensor:
    """The federation's outputs, or those of one party's own model."""
    if model is None:
        return predicted.outputs
    found = predicted.each
    if model not in found:
        raise ConfigError(
            f"model: '{model}' has none of its own; "
            + (f"there are those of {list(found)}" if found else f"'{method}' gives one for all")
        )
    positions, outputs = found[model]
    num_samples = len(predicted.outputs)
    if len(positions) < num_samples:
        raise MissingBlock(
            f"party '{model}' has {len(positions)} of {num_samples} samples, and its model "
            "answers for no others: leave those out"
        )
    return outputs[positions.argsort()]
