"""Batches by number: every side derives the same rows from a shared seed."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, DataError
from colonnade.core.seeds import derive_seed, shuffled

__all__ = ["BatchPlan"]

_NUM_ORDERS_KEPT = 32


class BatchPlan:
    """Which positions of a part of the data make up batch number n.

    Numbers go on over epochs: with 10 batches per epoch, batch 23 is the fourth of epoch 2.
    Shuffled plans have a fresh order each epoch. The last batch of an epoch may be smaller; a
    rest of one sample joins the batch before it, since batch norm can't take it alone.
    """

    def __init__(self, num_samples: int, batch_size: int, *, seed: int, shuffle: bool) -> None:
        if num_samples < 1:
            raise DataError("a part without samples has no batches; leave the part out")
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
        # Asynchronous parties are in different epochs at the same time.
        self._orders: OrderedDict[int, Tensor] = OrderedDict()

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
        order = self._orders.get(epoch)
        if order is None:
            seed = derive_seed(self.seed, "epoch", epoch)
            order = self._orders[epoch] = torch.from_numpy(shuffled(self.num_samples, seed))
            if len(self._orders) > _NUM_ORDERS_KEPT:
                self._orders.popitem(last=False)
        return order[start:stop]
