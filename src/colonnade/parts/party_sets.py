"""Sets of parties by number: bit k stands for the k-th party by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn

__all__ = ["EncodersBySet", "members", "number_of", "subsets"]


class EncodersBySet(Protocol):
    """A party's encoders, by the number of the set of parties that each is for."""

    def for_set(self, number: int) -> nn.Module | None:
        """The encoder for one set; None if the party is not in it."""


def number_of(some: Sequence[str], names: Sequence[str]) -> int:
    """The number of a set of parties among all of these."""
    return sum(1 << names.index(name) for name in some)


def members(number: int, names: Sequence[str]) -> tuple[str, ...]:
    """The parties of a set by its number."""
    return tuple(name for place, name in enumerate(names) if number >> place & 1)


def subsets(number: int) -> list[int]:
    """The nonempty subsets of a set, ascending."""
    return [item for item in range(1, number + 1) if item & number == item]
