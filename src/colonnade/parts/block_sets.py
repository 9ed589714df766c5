"""Sets of blocks: which are sampled, what they weigh, and a network over their averages.

A set is a row of weights over the blocks of one sample: 1/|S| for those in S, 0 for the others, so
that sets times stacked embeddings are the sets' averages. Row i has a set of i + 1 blocks.
"""

from __future__ import annotations

from functools import cache
from math import comb
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.devices import is_placed
from colonnade.core.task import Task

__all__ = [
    "PassOverSets",
    "SetWeights",
    "rarity_of_sets",
    "sample_sets",
    "set_weights",
    "task_gradients",
    "weighted_losses",
]

SetWeights = Literal["paper", "normalised", "whole"]


def sample_sets(num_blocks: int, seed: int, dtype: torch.dtype, *, own: bool) -> Tensor:
    """One set of every size 1 to ``num_blocks``, uniform among those of its size.

    With ``own`` every set contains block 0. The draw depends on the seed alone, whatever versions
    are installed: a set's members are the blocks with the smallest numbers of a fixed stream.
    """
    first = 1 if own else 0
    num_free = num_blocks - first
    # Row i: 1 / size in as many places as it has members besides block 0, in no order yet.
    sizes, rows, places = _places(num_blocks, first)
    sets = np.empty((num_blocks, num_blocks))
    sets[:, :first] = sizes
    if num_free:
        numbers = np.random.Philox(key=seed).random_raw(num_blocks * num_free)
        order = np.atleast_1d(numbers).reshape(num_blocks, num_free).argsort(1, kind="stable")
        sets[rows, order + first] = places
    return torch.from_numpy(sets).to(dtype)


@cache
def _places(num_blocks: int, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What does not depend on the draw: 1 / size and the number of every row, and the members."""
    rows = np.arange(num_blocks)[:, None]
    return 1 / (rows + 1), rows, np.tri(num_blocks, num_blocks - first, -first) / (rows + 1)


def set_weights(num_blocks: int, kind: SetWeights, *, own: bool) -> Tensor:
    """What the sampled set of each size weighs, as float64.

    ``paper`` counts the sets that the sampled one stands for: every set S has weight 1 in all,
    divided among the |S| networks that predict from it where each block has its own (``own``):
    a_i = C(m - 1, i - 1) / i = C(m, i) / m. They add up to (2^m - 1) / m. ``normalised`` divides
    by that sum. Of that the set of all blocks has 1 / (2^m - 1); with ``whole`` it has half of the
    weight besides, and every set half of what it would have.
    """
    counts = [comb(num_blocks, size) for size in range(1, num_blocks + 1)]
    total = sum(counts)
    if kind == "paper":
        total = num_blocks if own else 1
    weights = torch.tensor([count / total for count in counts], dtype=torch.float64)
    if kind == "whole":
        weights /= 2
        weights[-1] += 0.5
    return weights


def rarity_of_sets(sets: Tensor, rarity: Tensor) -> Tensor:
    """The product of its blocks' factors, for every set."""
    return ((sets > 0).to(rarity.dtype) @ rarity.log()).exp()


class PassOverSets:
    """A network over the average of every set, forward and back, in one pass for all of them.

    The first linear layer of a network and averaging commute; where that layer narrows, it goes
    first, so that only the narrow ones are averaged. Both are linear, so their way back is written
    out; what follows them is left to autograd.
    """

    def __init__(self, network: nn.Module, sets: Tensor, own: Tensor, others: Tensor) -> None:
        self._sets, self._own, self._others = sets, own.detach(), others.detach()
        self._first: nn.Linear | None = None
        self._rest: nn.Module | None = network
        if not len(others):
            # Nothing to average: the very operations of a network that was always alone.
            self._inputs = self._own.requires_grad_()
        else:
            # A network on a device stays whole: only it takes blocks there and back.
            first, after = (None, network) if is_placed(network) else _first_linear(network)
            if first is not None and first.out_features < first.in_features:
                self._first, self._rest = first, after
                blocks = self._narrowed(first)
            else:
                blocks = torch.cat([self._own[None], self._others])
            self._inputs = (sets @ blocks.flatten(1)).view(len(sets) * len(own), -1)
            if self._first is not None and self._first.bias is not None:
                self._inputs += self._first.bias.detach()
        rest = self._rest
        outputs = self._inputs if rest is None else rest(self._inputs.requires_grad_())
        self._outputs = outputs.view(len(sets), len(own), -1)

    @property
    def outputs(self) -> Tensor:
        """Sets x samples x outputs."""
        return self._outputs

    def pull(self, gradient: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """From dL/doutputs to those of the own block, of the others, and of the parameters."""
        inner = gradient.reshape(len(self._inputs), -1)
        of_parameters: tuple[Tensor, ...] = ()
        if self._rest is not None:
            wanted = [self._inputs, *self._rest.parameters()]
            inner, *found = torch.autograd.grad(self._outputs, wanted, gradient)
            of_parameters = tuple(found)
        if not len(self._others):
            return inner, torch.zeros_like(self._others), of_parameters
        num_samples = len(self._own)
        own, others = (
            (self._sets.t() @ inner.view(len(self._sets), -1))
            .view(len(self._sets) * num_samples, -1)
            .tensor_split([num_samples])
        )
        if self._first is not None:
            weight = self._first.weight.detach()
            of_weight = own.t() @ self._own + others.t() @ self._others.flatten(0, 1)
            of_bias = () if self._first.bias is None else (inner.sum(0),)
            of_parameters = (of_weight, *of_bias, *of_parameters)
            own, others = own @ weight, others @ weight
        return own, others.view_as(self._others), of_parameters

    def _narrowed(self, first: nn.Linear) -> Tensor:
        """Every block after a linear layer without its bias: blocks x samples x outputs."""
        weight = first.weight.detach()
        narrow = self._own.new_empty(len(self._sets), len(self._own), len(weight))
        narrow[0] = (weight @ self._own.t()).t()
        # This way round a matrix of few rows times many columns is the faster product.
        narrow[1:].flatten(0, 1).copy_((weight @ self._others.flatten(0, 1).t()).t())
        return narrow


def _first_linear(network: nn.Module) -> tuple[nn.Linear | None, nn.Module | None]:
    """A network's first layer, if it is a plain linear one, and what comes after it, if any."""
    if type(network) is nn.Linear:
        return network, None
    if type(network) is nn.Sequential and len(network) and type(network[0]) is nn.Linear:
        return network[0], network[1:] if len(network) > 1 else None
    return None, network


def weighted_losses(losses: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of the sets' mean losses; ``losses`` has a row per set."""
    return (losses * (weights / losses.shape[-1])[:, None]).sum()


def task_gradients(
    outputs: Tensor, targets: Tensor, weights: Tensor, task: Task
) -> tuple[Tensor, Tensor]:
    """Per head the weighted mean of its sets' losses; and dL/dlogits of equation (7).

    ``outputs`` is heads x sets x samples x outputs.
    """
    num_heads, num_sets, num_samples, _ = outputs.shape
    leaf = outputs.detach().requires_grad_()
    if num_heads * num_sets == 1:
        # One party alone weighs 1: the very operations of training by itself.
        loss = task.loss(leaf[0, 0], targets)
        return loss.detach()[None], torch.autograd.grad(loss, leaf)[0]
    repeated = targets.repeat(num_heads * num_sets, *(1 for _ in targets.shape[1:]))
    losses = task.losses(leaf.flatten(0, 2), repeated).view(num_heads * num_sets, num_samples)
    weights = weights.to(outputs.dtype)
    (gradient,) = torch.autograd.grad(weighted_losses(losses, weights.repeat(num_heads)), leaf)
    means = losses.detach().view(num_heads, num_sets, num_samples).mean(2)
    return means @ (weights / weights.sum()), gradient
