"""Batches by number: every side derives the same rows from a shared seed."""

from __future__ import annotations

import torch
from torch import Tensor

from colonnade.core.errors import ConfigError
from colonnade.core.seeds import derive_seed, shuffled

__all__ = ["BatchPlan"]


class BatchPlan:
    """Which positions of a part of the data make up batch number n.

    Numbers go on over epochs: with 10 batches per epoch, batch 23 is the fourth of epoch 2.
    Shuffled plans have a fresh order each epoch. The last batch of an epoch may be smaller; a
    rest of one sample joins the batch before it, since batch norm can't take it alone.
    """

    def __init__(self, num_samples: int, batch_size: int, *, seed: int, shuffle: bool) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size: must be at least 1, got {batch_size}")
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        starts = list(range(0, num_samples, batch_size))
        if len(starts) > 1 and num_samples - starts[-1] == 1:
            starts.pop()
        self._bounds = list(zip(starts, [*starts[1:], num_samples], strict=True))
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    @property
    def num_batches(self) -> int:
        """Batches per epoch."""
        return len(self._bounds)

    def positions(self, number: int) -> Tensor:
        """The positions of batch ``number`` within the part."""
        epoch, place = divmod(number, len(self._bounds))
        start, stop = self._bounds[place]
        if not self.shuffle:
            return torch.arange(start, stop)
        if epoch != self._epoch:
            order = shuffled(self.num_samples, derive_seed(self.seed, "epoch", epoch))
            self._order, self._epoch = torch.from_numpy(order), epoch
        return self._order[start:stop]
