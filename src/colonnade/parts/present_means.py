"""Means over the parties that have a sample, for every sample of a batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from colonnade.core.errors import MissingBlock
from colonnade.core.presence import Observed

__all__ = ["mean_of_present"]


def mean_of_present(values: Mapping[str, Tensor], here: Observed) -> Tensor:
    """The mean over those who have each sample.

    Args:
        values: By party a row for each sample that it has, all of one width.
        here: Which these are; of the parties in ``values`` and no others.

    Returns:
        A row per sample of the batch.

    Raises:
        MissingBlock: If a sample is at none of them.
    """
    if not values or (not here.is_complete and int(here.counts.min()) == 0):
        raise MissingBlock("nobody answered who has some of the samples; raise patience.timeout")
    if here.is_complete:
        return torch.stack(list(values.values())).mean(0)
    total = torch.stack([here.spread(name, item) for name, item in values.items()]).sum(0)
    return total / here.counts[:, None].to(total.dtype)
