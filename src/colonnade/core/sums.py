"""Sums over parties: all that some methods need to know of their embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from colonnade.core.parties import Parties

__all__ = ["Sums", "Total"]


class Total(NamedTuple):
    """A sum over parties, and whose values are in it, in party order."""

    value: Tensor
    names: tuple[str, ...]


class Sums(Protocol):
    """A way of adding up that shows the label holder the sum and nothing else."""

    async def total(
        self,
        parties: Parties,
        verb: str,
        arguments: tuple[Any, ...],
        among: Iterable[str] | None,
        deadline: int | None,
    ) -> Total:
        """The sum of the parties' answers to a verb."""
