"""PlugVFL: parties drop out at random in training, so that one may be unplugged later.

Paper: Sun et al. 2024 (party-wise dropout), extended as LASER-VFL does (appendix D, "Notes on
PlugVFL"): zeros stand for a block that is missing, in training and in inference, and every passive
party drops out with the same probability. Then the label holder's block is never dropped in
training, but may be missing in inference: ``exempt = "nobody"`` drops it too. Departures:

1. Sun et al. also hide what an embedding tells of the label from it; that is left out.
2. A party that drops out of an exchange is not asked at all, which saves its messages: with zeros
   in its place its gradient would be zero.
3. If everybody would drop out (only where nobody is exempt, or the label holder has no block),
   nobody does. A batch mixes samples that different parties have; one whose parties all drop out
   is not trained on in that exchange.
4. ``exempt = "nobody"`` is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, MissingBlock
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method, MethodInfo
from colonnade.core.parties import Parties, each
from colonnade.core.presence import Observed
from colonnade.core.seeds import derive_seed
from colonnade.core.verbs import verb
from colonnade.parts.split_step import SplitParty

__all__ = ["Plug", "PlugParty"]


@dataclass
class Widths:
    """How wide every party's embeddings are."""

    by_party: dict[str, int] = field(default_factory=dict)


class PlugParty(SplitParty):
    """The silo's half; also says how wide its embeddings are, for the zeros in its place."""

    @verb
    def width(self) -> int:
        """How many numbers an embedding has."""
        with self.evaluating():
            embedding: Tensor = self.encoder(self.parts["train"].features[:1])
        return embedding.shape[1]


@dataclass(frozen=True, kw_only=True)
class Plug(Method):
    """SplitNN with parties that drop out at random, and zeros for whoever is not there."""

    info = MethodInfo(
        name="plug",
        paper="PlugVFL (Sun et al. 2024), as extended by LASER-VFL (appendix D)",
        summary="parties drop out at random in training; zeros stand for whoever is missing",
        tolerates_missing=True,
    )
    party = PlugParty

    dropout: float = 0.3
    exempt: Literal["label_holder", "nobody"] = "label_holder"

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: a probability from 0 to below 1, got {self.dropout}")

    async def begin(self, holder: LabelHolder, parties: Parties) -> None:
        """Ask everybody how wide the zeros in its place must be."""
        holder.memory.recall(Widths).by_party = await parties.ask("width")

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """A step of the joint network with zeros for those missing or dropped out."""
        here = holder.observed(batch, parties.names)
        embeddings = await parties.ask("embed", batch, among=self._staying(holder, here.names))
        if not embeddings:
            return  # nobody answered, and the run's patience is to go on
        here = here.among(embeddings)
        filled = _filled(holder, embeddings, here)
        # Of a sample whose parties all dropped out there are only zeros, which teach nothing.
        places = here.counts.nonzero()[:, 0]
        if len(places) == here.num_samples:
            gradients = holder.learn(filled, batch)
        else:
            some = {name: item[places] for name, item in filled.items()}
            found = holder.learn(some, batch, places)
            gradients = {
                name: torch.zeros_like(filled[name]).index_copy(0, places, item)
                for name, item in found.items()
            }
        own = {name: gradients[name][here.rows[name]] for name in embeddings}
        await parties.tell("descend", batch, each(own), among=own)

    async def predict(
        self, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
    ) -> Answer:
        """The fusion of the embeddings that there are, and zeros."""
        here = holder.observed(batch, parties.names)
        embeddings = await parties.ask("infer", batch, among=here.names)
        filled = _filled(holder, embeddings, here.among(embeddings))
        return Answer(outputs=holder.infer(filled), used=tuple(embeddings))

    def _staying(self, holder: LabelHolder, here: tuple[str, ...]) -> tuple[str, ...]:
        draw = torch.Generator().manual_seed(derive_seed(holder.seed, "plug", holder.exchange))
        lots = torch.rand(len(here), generator=draw).tolist()
        exempt = holder.name if self.exempt == "label_holder" else None
        staying = tuple(
            name
            for name, lot in zip(here, lots, strict=True)
            if name == exempt or lot >= self.dropout
        )
        return staying or here


def _filled(
    holder: LabelHolder, embeddings: Mapping[str, Tensor], here: Observed
) -> dict[str, Tensor]:
    """Embeddings of all parties, in their order: zeros for what is not there."""
    if not embeddings:
        raise MissingBlock("nobody answered: there is nothing but zeros to predict from")
    spread = {name: here.spread(name, item) for name, item in embeddings.items()}
    like = next(iter(spread.values()))
    return {
        name: spread[name] if name in spread else like.new_zeros(len(like), width)
        for name, width in holder.memory.recall(Widths).by_party.items()
    }
