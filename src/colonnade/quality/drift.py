"""Drift of prepared rows: how far their recent mean is from the training part's, column by column.

Scaled columns have mean 0 and deviation 1 in training, so the distance is in deviations. It says
nothing before it has seen a hundred rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Drift"]

_FEWEST_ROWS = 100
# The weight of the past: about this many rows count.
_NUM_ROWS = 2000


class Drift:
    """A mean over recent rows that forgets older ones; ``num_seen`` rows so far."""

    def __init__(self) -> None:
        self._mean: Tensor | None = None
        self.num_seen = 0

    def see(self, rows: Tensor) -> None:
        """Take in prepared rows, a sample per row."""
        flat = rows.detach().flatten(1).double()
        self.num_seen += len(flat)
        share = min(1.0, len(flat) / min(self.num_seen, _NUM_ROWS))
        mean = flat.mean(0)
        self._mean = mean if self._mean is None else torch.lerp(self._mean, mean, share)

    def distance(self) -> float | None:
        """The mean distance over columns, in deviations; None before there are enough rows."""
        if self._mean is None or self.num_seen < _FEWEST_ROWS:
            return None
        return float(self._mean.abs().mean())
