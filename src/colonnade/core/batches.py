"""Batches by number: every side derives the same rows from a shared seed."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, DataError
from colonnade.core.seeds import derive_seed, shuffled

__all__ = ["BatchPlan", "Batches", "OwnBatches", "even_bounds"]

_NUM_ORDERS_KEPT = 32


class Batches(Protocol):
    """Positions of a part of the data, by the number of a batch."""

    @property
    def num_samples(self) -> int:
        """How many positions the part has."""

    def positions(self, number: int) -> Tensor:
        """The positions of a batch, or those of them that somebody has."""


class BatchPlan:
    """Which positions of a part of the data make up batch number n.

    Numbers go on over epochs: with 10 batches per epoch, batch 23 is the fourth of epoch 2.
    Shuffled plans have a fresh order each epoch. All batches of an epoch have almost the same size:
    cut off at ``batch_size``, the rest could be a batch of a few samples, whose noisy step counts
    like any other and can ruin a deep network with batch norm in one stroke. A batch of one, which
    batch norm can't take at all, is avoided where ``batch_size`` is not 1: a batch may then be one
    sample larger.

    ``groups`` gives a number per position: samples of different groups never share a batch, and
    the batches of all groups are shuffled among each other. One group is the same as none.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        groups: Tensor | None = None,
    ) -> None:
        if num_samples < 1:
            raise DataError("a part without samples has no batches; leave the part out")
        if batch_size < 1:
            raise ConfigError(f"batch_size: must be at least 1, got {batch_size}")
        if groups is not None and len(groups) != num_samples:
            raise DataError(f"{len(groups)} groups for {num_samples} samples; give one for each")
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self._group_of: Tensor | None = None
        sizes = [num_samples]
        if groups is not None:
            kinds, group_of, counts = torch.unique(groups, return_inverse=True, return_counts=True)
            if len(kinds) > 1:
                self._group_of, sizes = group_of, counts.tolist()
        self._bounds: list[tuple[int, int]] = []
        for size in sizes:
            begin = self._bounds[-1][1] if self._bounds else 0
            self._bounds += [
                (begin + start, begin + stop) for start, stop in even_bounds(size, batch_size)
            ]
        # Asynchronous parties are in different epochs at the same time.
        self._orders: OrderedDict[int, tuple[Tensor, Tensor | None]] = OrderedDict()
        # Whoever encodes a batch and then accounts for it asks for the same one twice.
        self._last: tuple[int, Tensor] | None = None

    @property
    def is_in_order(self) -> bool:
        """Whether its batches, one after the other, are the positions from first to last."""
        return not self.shuffle and self._group_of is None

    @property
    def num_batches(self) -> int:
        """Batches per epoch."""
        return len(self._bounds)

    @property
    def smallest_batch(self) -> int:
        """How many samples the smallest batch has."""
        return min(stop - start for start, stop in self._bounds)

    @property
    def lone_positions(self) -> Tensor:
        """The positions that have a batch to themselves in the first epoch."""
        if all(stop - start > 1 for start, stop in self._bounds):
            return torch.empty(0, dtype=torch.int64)
        batches = map(self.positions, range(len(self._bounds)))
        return torch.cat([batch for batch in batches if len(batch) == 1])

    def positions(self, number: int) -> Tensor:
        """The positions of batch ``number`` within the part."""
        last = self._last
        if last is not None and last[0] == number:
            return last[1]
        positions = self._positions(number)
        self._last = number, positions
        return positions

    def num_positions(self, number: int) -> int:
        """How many positions batch ``number`` has."""
        if self.shuffle and self._group_of is not None:
            return len(self.positions(number))
        start, stop = self._bounds[number % len(self._bounds)]
        return stop - start

    def taken(self, values: Tensor, number: int) -> Tensor:
        """The rows of batch ``number`` of a part's values, as a copy."""
        if not self.is_in_order:
            return values[self.positions(number)]
        if len(self._bounds) == 1 and values.shape[0] == self.num_samples:
            return values.clone()
        start, stop = self._bounds[number % len(self._bounds)]
        return values[start:stop].clone()

    def own(self, here: Tensor) -> OwnBatches:
        """The same batches as somebody has them who has these positions only.

        Args:
            here: Whether each position is there.

        Returns:
            Of every batch the positions that are there.
        """
        return OwnBatches(self, here)

    def _positions(self, number: int) -> Tensor:
        epoch, place = divmod(number, len(self._bounds))
        if not self.shuffle:
            epoch = 0
            if self._group_of is None:
                return torch.arange(*self._bounds[place])
        order, batches = self._order(epoch)
        start, stop = self._bounds[place if batches is None else int(batches[place])]
        return order[start:stop]

    def _order(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        """The positions of an epoch one after the other, and the order of its batches."""
        known = self._orders.get(epoch)
        if known is not None:
            return known
        order, batches = torch.arange(self.num_samples), None
        if self.shuffle:
            seed = derive_seed(self.seed, "epoch", epoch)
            order = torch.from_numpy(shuffled(self.num_samples, seed))
        if self._group_of is not None:
            order = order[torch.argsort(self._group_of[order], stable=True)]
            if self.shuffle:
                seed = derive_seed(self.seed, "epoch", epoch, "batches")
                batches = torch.from_numpy(shuffled(len(self._bounds), seed))
        self._orders[epoch] = order, batches
        if len(self._orders) > _NUM_ORDERS_KEPT:
            self._orders.popitem(last=False)
        return order, batches


class OwnBatches:
    """A plan's batches as one party has them: the same numbers, only positions that it has."""

    def __init__(self, plan: BatchPlan, here: Tensor) -> None:
        self.num_samples = plan.num_samples
        self._plan = plan
        self._here = here
        self._last: tuple[int, Tensor] | None = None

    def positions(self, number: int) -> Tensor:
        """The positions of batch ``number`` that are there, in the batch's order."""
        last = self._last
        if last is not None and last[0] == number:
            return last[1]
        every = self._plan.positions(number)
        own = every[self._here[every]]
        self._last = number, own
        return own


def even_bounds(size: int, batch_size: int) -> list[tuple[int, int]]:
    """Where batches begin and end: as few as possible, of sizes that differ by one at most."""
    count = -(-size // batch_size)
    if batch_size > 1 and size // count == 1:
        count = max(1, size // 2)
    bounds = [size * place // count for place in range(count + 1)]
    return list(pairwise(bounds))
