"""Sums over parties: all that some methods need to know of their embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.core.failures import not_finite

if TYPE_CHECKING:
    from colonnade.core.parties import Parties

__all__ = ["Sums", "Total", "added_up"]


class Total(NamedTuple):
    """A sum over parties.

    Attributes:
        value: The sum.
        names: The parties whose values are in it, in party order.
    """

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

    def forget(self, party: str) -> None:
        """Agree again before the next sum: a party came back without what it had agreed on."""


def added_up(answers: Mapping[str, Tensor], verb: str, exchange: int) -> Total:
    """The sum of answers that are known one by one, in party order.

    Raises:
        ProtocolError: If the answers differ in shape.
        Diverged: If the sum is not finite.
    """
    if len({item.shape for item in answers.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(item.shape)}" for name, item in answers.items())
        raise ProtocolError(f"'{verb}': answers of different shapes have no sum: {shapes}")
    value, *others = answers.values()
    for item in others:
        value = value + item
    if not torch.isfinite(value).all():
        raise not_finite(answers, verb, exchange)
    return Total(value, tuple(answers))
