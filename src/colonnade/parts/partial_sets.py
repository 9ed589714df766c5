"""Sets of blocks where samples of one batch have different blocks.

The same as ``block_sets``, of all observed sets of a batch at once. Samples of one observed set
have the same sampled sets. A task is one sample's set of one size; the tasks of a batch lie one
below the other: of the first sample those of size 1, 2, ..., then of the next one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.parts.block_sets import SetWeights, set_weights

__all__ = ["PartialPass", "Tasks", "sample_partial_sets", "task_rows", "task_weights"]


class Tasks(NamedTuple):
    """Sampled sets of every sample, and which of them there are.

    Attributes:
        sets: (sample, size - 1, block): 1 / size for the members.
        valid: (sample, size - 1): whether the sample has as many blocks.
    """

    sets: Tensor
    valid: Tensor


def sample_partial_sets(there: Tensor, seed: int, dtype: torch.dtype, *, own: bool) -> Tasks:
    """For every sample one set of every size, uniform among those of its size and its blocks.

    Args:
        there: Whether each block is there: (block, sample); with ``own`` without block 0, which
            is always there and in every set.
        seed: What the draw depends on, and on nothing else.
        dtype: Of the sets.
        own: Whether every set contains block 0.

    Returns:
        The sets. Where everybody has everything they are those of ``sample_sets``.
    """
    first = 1 if own else 0
    if len(there):
        kinds, kind_of = np.unique(there.t().numpy(), axis=0, return_inverse=True)
    else:
        kinds, kind_of = np.empty((1, 0), dtype=bool), np.zeros(there.shape[1], dtype=np.int64)
    num_kinds, num_free = kinds.shape
    num_blocks = num_free + first
    shape = (num_kinds, num_blocks, num_free)
    numbers = np.zeros(shape, dtype=np.uint64)
    if numbers.size:
        raw = np.random.Philox(key=seed).random_raw(numbers.size)
        numbers = np.atleast_1d(raw).reshape(shape)
    absent = np.broadcast_to(~kinds[:, None, :], shape)
    # Blocks by number, those that are absent last; a block's rank is its place in that order.
    order = np.lexsort((numbers, absent), axis=-1)
    ranks = np.empty(shape, dtype=np.int64)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(num_free), shape), axis=-1)
    sizes = np.arange(1, num_blocks + 1)
    members = np.ones((num_kinds, num_blocks, num_blocks), dtype=bool)
    members[:, :, first:] = ranks < (sizes - first)[:, None]
    valid = sizes <= kinds.sum(axis=1)[:, None] + first
    sets = (members & valid[:, :, None]) / sizes[:, None]
    places = torch.from_numpy(kind_of.reshape(-1))
    return Tasks(torch.from_numpy(sets).to(dtype)[places], torch.from_numpy(valid)[places])


def task_rows(counts: Tensor) -> tuple[Tensor, Tensor]:
    """The sample of every task, and its size less one; ``counts`` are blocks per sample."""
    samples = torch.repeat_interleave(torch.arange(len(counts)), counts)
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return samples, torch.arange(len(samples)) - starts


def task_weights(counts: Tensor, kind: SetWeights, *, own: bool) -> Tensor:
    """What every task weighs, as float64: by its size, and the number of the sample's blocks."""
    samples, sizes = task_rows(counts)
    most = int(counts.max())
    table = torch.zeros(most + 1, most, dtype=torch.float64)
    for count in torch.unique(counts[counts > 0]).tolist():
        table[count, :count] = set_weights(count, kind, own=own)
    return table[counts[samples], sizes]


class PartialPass:
    """A network over the average of every task's set, forward and back, in one pass for all."""

    def __init__(
        self, network: nn.Module, tasks: Tasks, own: Tensor, others: Tensor, there: Tensor
    ) -> None:
        self._leaves = own.detach().requires_grad_(), others.detach().requires_grad_()
        self._parameters = list(network.parameters())
        self._own, self._others = self._leaves
        shape = (len(there), len(own), own.shape[1])
        blocks = torch.zeros(shape, dtype=own.dtype).masked_scatter(
            there[:, :, None].expand(shape), self._others
        )
        every = torch.cat([self._own[None], blocks]).transpose(0, 1)
        inputs = (tasks.sets @ every)[tasks.valid]
        self.outputs: Tensor = network(inputs)

    def pull(self, gradient: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """From dL/doutputs to those of the own block, of the others, and of the parameters."""
        wanted = [*self._leaves, *self._parameters]
        own, others, *found = torch.autograd.grad(self.outputs, wanted, gradient)
        return own, others, tuple(found)
