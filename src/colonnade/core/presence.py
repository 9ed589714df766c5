"""Presence: which sample of a part is at which party; missing is absent, never filled in.

A batch mixes samples with different observed sets: every party is asked for the rows that it has,
and the label holder knows which these are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import DataError

__all__ = ["Observed", "Presence"]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Which samples of one batch each party has.

    Attributes:
        names: The parties that have at least one of them, in party order.
        num_samples: How many samples the batch has.
        table: Whether each sample is there, a column per name; None where everybody has all.
    """

    names: tuple[str, ...]
    num_samples: int
    table: Tensor | None = None

    @classmethod
    def of(cls, names: tuple[str, ...], table: Tensor) -> Observed:
        """Read a table of presence.

        Args:
            names: The parties, a column each.
            table: A row per sample: who has it.

        Returns:
            What the table says, without parties that have none of the samples.
        """
        there = table.any(dim=0).tolist()
        named = tuple(name for name, here in zip(names, there, strict=True) if here)
        if not all(there):
            table = table[:, torch.tensor(there)]
        return cls(
            names=named,
            num_samples=len(table),
            table=None if named and bool(table.all()) else table,
        )

    @property
    def is_complete(self) -> bool:
        """Whether each of ``names`` has every sample."""
        return self.table is None

    @cached_property
    def rows(self) -> Mapping[str, Tensor]:
        """By party the places in the batch of the samples that it has, its rows in their order."""
        if self.table is None:
            return dict.fromkeys(self.names, torch.arange(self.num_samples))
        return {
            name: here.nonzero()[:, 0]
            for name, here in zip(self.names, self.table.unbind(dim=1), strict=True)
        }

    @cached_property
    def counts(self) -> Tensor:
        """How many parties have each sample; not one, of a sample whose parties did not answer."""
        if self.table is None:
            return torch.full((self.num_samples,), len(self.names))
        return self.table.sum(dim=1)

    def among(self, names: Collection[str]) -> Observed:
        """The same of some parties: those who answered.

        Args:
            names: Their names.

        Returns:
            Every sample of the batch, also one that none of them has.
        """
        if len(names) == len(self.names):
            return self
        kept = [place for place, name in enumerate(self.names) if name in names]
        named = tuple(self.names[place] for place in kept)
        table = None if self.table is None else self.table[:, kept]
        if table is not None and named and bool(table.all()):
            table = None
        return Observed(names=named, num_samples=self.num_samples, table=table)

    def spread(self, name: str, values: Tensor) -> Tensor:
        """A party's rows at their places in the batch, and zeros elsewhere; autograd goes through.

        Args:
            name: The party.
            values: A row for each sample that it has.

        Returns:
            A row per sample of the batch.
        """
        if self.table is None:
            return values
        nothing = values.new_zeros(self.num_samples, *values.shape[1:])
        return nothing.index_copy(0, self.rows[name], values)

    def sets(self) -> Iterator[tuple[tuple[str, ...], Tensor]]:
        """Every observed set in the batch, and the places of its samples.

        Returns:
            Parties in party order; places in ascending order. A set of nobody is left out.
        """
        if self.table is None:
            yield self.names, torch.arange(self.num_samples)
            return
        if not self.names:
            return
        kinds, kind_of = torch.unique(self.table, dim=0, return_inverse=True)
        for number, row in enumerate(kinds.tolist()):
            named = tuple(name for name, here in zip(self.names, row, strict=True) if here)
            if named:
                yield named, (kind_of == number).nonzero()[:, 0]

    def picked(self, name: str, values: Tensor, places: Tensor) -> Tensor:
        """A party's rows for some places of the batch, all of which it has.

        Args:
            name: The party.
            values: A row for each sample that it has.
            places: Places in the batch.

        Returns:
            A row per place.
        """
        if self.table is None:
            return values[places]
        return values[torch.searchsorted(self.rows[name], places)]


@dataclass(frozen=True, kw_only=True)
class Presence:
    """One part's presence table, in the order of the part, and its batches."""

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
    def _is_complete(self) -> bool:
        return bool(self.table.all())

    @cached_property
    def shares(self) -> dict[str, float]:
        """The share of the samples that each party has."""
        found = self.table.double().mean(dim=0).tolist()
        return dict(zip(self.names, found, strict=True))

    def num_rows(self, number: int, name: str) -> int:
        """How many samples of a batch a party has."""
        if self._is_complete and name in self.names:
            return self.plan.num_positions(number)
        return int(self.table[self.plan.positions(number), self.names.index(name)].sum())

    def observed(self, number: int, names: tuple[str, ...]) -> Observed:
        """Which samples of a batch each of these parties has."""
        if self._is_complete and names == self.names:
            return Observed(names=names, num_samples=self.plan.num_positions(number))
        table = self.table[self.plan.positions(number)]
        if names != self.names:
            table = table[:, [self.names.index(name) for name in names]]
        return Observed.of(names, table)
