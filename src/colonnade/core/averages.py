"""Fusing embeddings of which only the sum is known: their mean stands for all of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.parties import Parties

__all__ = ["ask_or_average", "fused_gradients"]


async def ask_or_average(parties: Parties, verb: str, *arguments: Any) -> dict[str, Tensor]:
    """Every party's embedding; or, where only sums are known, the mean under the first's name.

    A fusion that averages what is there takes the one for the other.
    """
    if not parties.sums_only:
        return await parties.ask(verb, *arguments)
    total = await parties.total(verb, *arguments)
    return {total.names[0]: total.value * (1.0 / len(total.names))}


async def fused_gradients(
    holder: LabelHolder, parties: Parties, verb: str, batch: Batch, *arguments: Any
) -> dict[str, Tensor]:
    """Embeddings up, one update of the fusion; dL/dh_k for everyone who took part."""
    if not parties.sums_only:
        return holder.learn(await parties.ask(verb, batch, *arguments), batch)
    total = await parties.total(verb, batch, *arguments)
    share = 1.0 / len(total.names)
    # The mean's gradient is every party's own, but for the factor 1/n.
    (gradient,) = holder.learn({total.names[0]: total.value * share}, batch).values()
    return dict.fromkeys(total.names, gradient * share)
