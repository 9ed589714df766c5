"""Sets of blocks: which are sampled, what they weigh, and a network over their averages.

A set is a row of weights over the blocks of one sample: 1/|S| for those in S, 0 for the others, so
that sets times stacked embeddings are the sets' averages. Row i has a set of i + 1 blocks.
"""

from __future__ import annotations

from math import comb
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "SetWeights",
    "outputs_of_averages",
    "rarity_of_sets",
    "sample_sets",
    "set_weights",
    "weighted_losses",
]

SetWeights = Literal["paper", "normalised"]


def sample_sets(num_blocks: int, seed: int, dtype: torch.dtype, *, own: bool) -> Tensor:
    """One set of every size 1 to ``num_blocks``, uniform among those of its size.

    With ``own`` every set contains block 0. The draw depends on the seed alone, whatever versions
    are installed: a set's members are the blocks with the smallest numbers of a fixed stream.
    """
    first = 1 if own else 0
    num_free = num_blocks - first
    sizes = np.arange(1, num_blocks + 1)[:, None]
    # Row i: 1 / size in as many places as it has members besides block 0, in no order yet.
    places = np.tri(num_blocks, num_free, -first) / sizes
    sets = np.empty((num_blocks, num_blocks))
    sets[:, :first] = 1 / sizes
    if num_free:
        numbers = np.random.Philox(key=seed).random_raw(num_blocks * num_free)
        order = np.atleast_1d(numbers).reshape(num_blocks, num_free).argsort(1, kind="stable")
        np.put_along_axis(sets[:, first:], order, places, axis=1)
    return torch.from_numpy(sets).to(dtype)


def set_weights(num_blocks: int, kind: SetWeights, *, own: bool) -> Tensor:
    """What the sampled set of each size weighs, as float64.

    ``paper`` counts the sets that the sampled one stands for: every set S has weight 1 in all,
    divided among the |S| networks that predict from it where each block has its own (``own``):
    a_i = C(m - 1, i - 1) / i = C(m, i) / m. They add up to (2^m - 1) / m. ``normalised`` divides
    by that sum.
    """
    counts = [comb(num_blocks, size) for size in range(1, num_blocks + 1)]
    total = {"paper": num_blocks if own else 1, "normalised": sum(counts)}[kind]
    return torch.tensor([count / total for count in counts], dtype=torch.float64)


def rarity_of_sets(sets: Tensor, rarity: Tensor) -> Tensor:
    """The product of its blocks' factors, for every set."""
    return ((sets > 0).to(rarity.dtype) @ rarity.log()).exp()


def outputs_of_averages(network: nn.Module, sets: Tensor, own: Tensor, others: Tensor) -> Tensor:
    """A network's outputs for the average of every set, in one pass: sets x samples x outputs.

    The first linear layer of a network and averaging commute; where that layer narrows, it goes
    first, so that only the narrow ones are averaged.
    """
    if not len(others):
        # Nothing to average: the very operations of a network that was always alone.
        outputs: Tensor = network(own)
        return outputs[None]
    num_sets, num_samples = len(sets), len(own)
    first, rest = _first_linear(network)
    if first is not None and first.out_features < first.in_features:
        weight = first.weight
        narrow = torch.cat(
            [functional.linear(own, weight), functional.linear(others.flatten(0, 1), weight)]
        )
        averages = (sets @ narrow.view(num_sets, -1)).view(num_sets * num_samples, -1)
        outputs = rest(averages if first.bias is None else averages + first.bias)
    else:
        blocks = torch.cat([own[None], others])
        outputs = network((sets @ blocks.flatten(1)).view(num_sets * num_samples, -1))
    return outputs.view(num_sets, num_samples, -1)


def _first_linear(network: nn.Module) -> tuple[nn.Linear | None, nn.Module]:
    """A network's first layer, if it is a plain linear one, and what comes after it."""
    if type(network) is nn.Linear:
        return network, nn.Identity()
    if type(network) is nn.Sequential and len(network) and type(network[0]) is nn.Linear:
        return network[0], network[1:]
    return None, network


def weighted_losses(losses: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of the sets' mean losses; ``losses`` has a row per set."""
    return (losses * (weights / losses.shape[-1])[:, None]).sum()
