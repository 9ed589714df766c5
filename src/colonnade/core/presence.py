"""Presence: which sample of a part is at which party; missing is absent, never filled in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import DataError, ProtocolError

__all__ = ["Presence", "observed_sets"]

# One bit per party in a 64-bit integer, the sign left alone.
_MOST_PARTIES = 62


def observed_sets(table: Tensor) -> Tensor:
    """A number per sample that stands for the set of parties that have it: bit k for party k."""
    num_parties = table.shape[1]
    if num_parties > _MOST_PARTIES:
        raise DataError(f"presence of {num_parties} parties; at most {_MOST_PARTIES} can differ")
    return (table.long() << torch.arange(num_parties)).sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class Presence:
    """One part's presence table, in the order of the part, and its batches of one observed set."""

    names: tuple[str, ...]
    table: Tensor
    plan: BatchPlan

    def __post_init__(self) -> None:
        expected = (self.plan.num_samples, len(self.names))
        if tuple(self.table.shape) != expected:
            raise DataError(
                f"a presence table of shape {tuple(self.table.shape)}, expected {expected}"
            )

    @cached_property
    def sets(self) -> Tensor:
        """The observed set of every sample, as a number."""
        return observed_sets(self.table)

    @cached_property
    def shares(self) -> dict[str, float]:
        """The share of the samples that each party has."""
        found = self.table.double().mean(dim=0).tolist()
        return dict(zip(self.names, found, strict=True))

    def observed(self, number: int) -> tuple[str, ...]:
        """Who has the samples of a batch: the same parties for all of them."""
        positions = self.plan.positions(number)
        row = self.table[positions[0]]
        if not bool((self.table[positions] == row).all()):
            raise ProtocolError(f"batch {number} mixes samples with different observed sets")
        return tuple(name for name, here in zip(self.names, row.tolist(), strict=True) if here)
