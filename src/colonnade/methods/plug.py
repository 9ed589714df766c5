"""PlugVFL: parties drop out at random in training, so that one may be unplugged later.

Paper: Sun et al. 2024 (party-wise dropout), extended as LASER-VFL does (appendix D, "Notes on
PlugVFL"): zeros stand for a block that is missing, in training and in inference, and every passive
party drops out with the same probability. Departures:

1. Sun et al. also hide what an embedding tells of the label from it; that is left out.
2. A party that drops out of an exchange is not asked at all, which saves its messages: with zeros
   in its place its gradient would be zero.
3. If everybody would drop out (only where the label holder has no block), nobody does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, MissingBlock
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo
from colonnade.core.parties import Parties, each
from colonnade.core.seeds import derive_seed
from colonnade.core.split_step import SplitParty
from colonnade.core.verbs import verb

__all__ = ["Plug", "PlugParty"]

WIDTHS = "embedding widths"


class PlugParty(SplitParty):
    """The silo's half; also says how wide its embeddings are, for the zeros in its place."""

    @verb
    def width(self) -> int:
        """How many numbers an embedding has."""
        self.model.eval()
        try:
            with torch.no_grad():
                embedding: Tensor = self.encoder(self.parts["train"].features[:1])
        finally:
            self.model.train()
        return embedding.shape[1]


@dataclass(frozen=True, kw_only=True)
class Plug(Method):
    """SplitNN with parties that drop out at random, and zeros for whoever is not there."""

    info = MethodInfo(
        name="plug",
        paper="PlugVFL (Sun et al. 2024), as extended by LASER-VFL (appendix D)",
        summary="parties drop out at random in training; zeros stand for whoever is missing",
        tolerates_slow=False,
        tolerates_missing=True,
        heterogeneous_models=True,
        private_labels=True,
    )
    party = PlugParty

    dropout: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: a probability from 0 to below 1, got {self.dropout}")

    async def begin(self, holder: LabelHolder, parties: Parties) -> None:
        """Ask everybody how wide the zeros in its place must be."""
        holder.memory[WIDTHS] = await parties.ask("width")

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """A step of the joint network with zeros for those missing or dropped out."""
        here = self._staying(holder, holder.observed(batch, parties.names))
        embeddings = await parties.ask("embed", batch, among=here)
        if not embeddings:
            return  # nobody answered, and the run's patience is to go on
        gradients = holder.learn(_filled(holder, embeddings), batch)
        own = {name: gradients[name] for name in embeddings}
        await parties.tell("descend", batch, each(own), among=own)

    async def predict(self, holder: LabelHolder, parties: Parties, batch: Batch) -> Tensor:
        """The fusion of the embeddings that there are, and zeros."""
        here = holder.observed(batch, parties.names)
        return holder.infer(_filled(holder, await parties.ask("infer", batch, among=here)))

    def _staying(self, holder: LabelHolder, here: tuple[str, ...]) -> tuple[str, ...]:
        draw = torch.Generator().manual_seed(derive_seed(holder.seed, "plug", holder.exchange))
        lots = torch.rand(len(here), generator=draw).tolist()
        staying = tuple(
            name
            for name, lot in zip(here, lots, strict=True)
            if name == holder.name or lot >= self.dropout
        )
        return staying or here


def _filled(holder: LabelHolder, embeddings: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Embeddings of all parties, in their order: zeros for those that are not there."""
    there = next(iter(embeddings.values()), None)
    if there is None:
        raise MissingBlock("nobody answered: there is nothing but zeros to predict from")
    return {
        name: embeddings[name] if name in embeddings else there.new_zeros(len(there), width)
        for name, width in holder.memory[WIDTHS].items()
    }
