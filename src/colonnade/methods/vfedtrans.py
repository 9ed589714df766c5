"""VFedTrans: a joint representation of shared samples, distilled into every party's own model.

Papers: Huang et al. 2023 (VFedTrans) with FedSVD (Chai et al. 2022) for the joint representation
and an autoencoder for the local one, as in LASER-VFL's comparison (appendix D). Three stages:

1. Of the samples that everybody has, party k sends P X_k Q_k; the label holder adds these up to
   P X Q and decomposes it. P and the stacked Q_k are random orthogonal matrices, so the singular
   values are those of X, and U = Pᵀ U' are its left singular vectors: the joint representation.
2. Every party trains an autoencoder on all its own samples, whose code is also drawn to the joint
   representation of the samples that have one.
3. The code is the start of the encoder in a model of the party's own, trained as in ``local``.

Departures:

1. One decomposition of all parties' columns together; the papers do one for each pair of parties.
2. P has a block per batch (Chai et al. cut it into blocks as well), over its complete samples.
3. FedSVD has a third party that makes the masks. Here they come from the label holder: they hide
   nothing from it, only from the parties among each other. For comparison, not for use.
4. Stage 3 goes on training the encoder with a head behind it; Huang et al. keep the code as it is
   and put it beside the raw columns.
5. Columns are scaled by their party before stage 1; singular vectors are scaled to unit variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from colonnade.core.batches import even_bounds
from colonnade.core.devices import place_beside
from colonnade.core.errors import ConfigError, DataError, MissingBlock, ProtocolError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import MethodInfo, Needs
from colonnade.core.parties import Parties, each
from colonnade.core.releases import Columns, RollOfSamples
from colonnade.core.seeds import derive_seed, drawing_from, shuffled
from colonnade.core.verbs import verb
from colonnade.parts.orthogonal import orthogonal
from colonnade.parts.own_models import OwnModelParty, OwnModels

__all__ = ["VFedTrans", "VFedTransParty"]


class VFedTransParty(OwnModelParty):
    """The silo's half of all three stages."""

    # By batch the rows that everybody has, and U of them; lives from stage 1 to stage 2, within one
    # call of ``begin``, and so is never part of a checkpoint.
    _joint: dict[int, tuple[Tensor, Tensor]] | None = None

    @verb
    def num_columns(self) -> int:
        """How many columns an own sample has."""
        return self.parts["train"].features.flatten(1).shape[1]

    @verb
    def masked(
        self, batch: Batch, shared: RollOfSamples, first: int, total: int, seed: int
    ) -> Columns:
        """P X_k Q_k of its rows that everybody has; own columns begin at ``first`` of ``total``."""
        rows = self.rows(batch)[shared].flatten(1).double()
        left = orthogonal(len(rows), derive_seed(seed, "rows", batch.number))
        right = orthogonal(total, derive_seed(seed, "columns"))
        return left @ rows @ right[first : first + rows.shape[1]]

    @verb
    def unmask(self, batch: Batch, shared: RollOfSamples, vectors: Columns, seed: int) -> None:
        """Keep U = Pᵀ U' of the rows of a batch that everybody has."""
        left = orthogonal(len(vectors), derive_seed(seed, "rows", batch.number))
        part = self.parts["train"]
        places = part.own.positions(batch.number)[shared]
        rows = places if part.rows is None else part.rows[places]
        self._joint = {**(self._joint or {}), batch.number: (rows, left.T @ vectors)}

    @verb
    def distil(self, num_epochs: int, rate: float, pull: float) -> None:
        """Stage 2: train encoder and decoder on own columns, codes drawn to U where it is known."""
        part = self.parts["train"]
        inputs = part.features
        targets, known = self._targets(inputs)
        with drawing_from(derive_seed(self._seed, "decoder")):
            decoder = _decoder(self.encoder, inputs).to(inputs.dtype)
        place_beside(decoder, self.encoder)
        optimizer = torch.optim.Adam([*self.encoder.parameters(), *decoder.parameters()], lr=rate)
        columns = inputs.flatten(1)
        for epoch in range(num_epochs):
            order = torch.from_numpy(
                shuffled(len(inputs), derive_seed(self._seed, "distil", epoch))
            )
            with drawing_from(derive_seed(self._seed, "distilling", epoch)):
                for start, stop in even_bounds(len(order), part.plan.batch_size):
                    chosen = order[start:stop]
                    codes = self.encoder(inputs[chosen])
                    loss = functional.mse_loss(decoder(codes), columns[chosen])
                    here = known[chosen]
                    if here.any():
                        wanted = targets[chosen][here][:, : codes.shape[1]]
                        near = codes[here][:, : wanted.shape[1]]
                        loss = loss + pull * functional.mse_loss(near, wanted)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    self.clock.work("step")
        self._joint = None

    def _targets(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """For every own row the joint representation, and whether there is one."""
        if not self._joint:
            raise ProtocolError(f"party '{self.name}': nothing to distil yet; unmask comes first")
        width = next(iter(self._joint.values()))[1].shape[1]
        targets = inputs.new_zeros(len(inputs), width)
        known = torch.zeros(len(inputs), dtype=torch.bool)
        for rows, vectors in self._joint.values():
            targets[rows] = vectors.to(inputs.dtype)
            known[rows] = True
        return targets, known


@dataclass(frozen=True, kw_only=True)
class VFedTrans(OwnModels):
    """Local models that begin with what all columns together say of the shared samples."""

    info = MethodInfo(
        name="vfedtrans",
        paper="VFedTrans (Huang et al. 2023) with FedSVD (Chai et al. 2022)",
        summary="a joint decomposition of shared samples, distilled into every party's own model",
        tolerates_missing=True,
    )
    party = VFedTransParty
    needs = Needs(heads=True, fusion=False, protectable=False)

    num_components: int = 16
    distil_epochs: int = 10
    distil_rate: float = 1e-3
    pull: float = 1.0

    def __post_init__(self) -> None:
        for name in ("num_components", "distil_epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("distil_rate", "pull"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")

    async def begin(self, holder: LabelHolder, parties: Parties) -> None:
        """Stages 1 and 2."""
        widths = await parties.ask("num_columns")
        names = tuple(widths)
        if not names:
            raise MissingBlock("nobody answered: there are no columns to decompose")
        batches = _complete_batches(holder, names)
        seed = derive_seed(holder.seed, "masks")
        first = dict(zip(names, _starts(list(widths.values())), strict=True))
        total = sum(widths.values())
        sums = []
        for batch, shared in batches:
            rows = each(shared)
            found = await parties.total(
                "masked", batch, rows, each(first), total, seed, among=names
            )
            if found.names != names:
                raise MissingBlock(
                    f"batch {batch.number}: no answer from {sorted({*names} - {*found.names})}; "
                    "the joint decomposition needs everybody's columns"
                )
            sums.append(found.value)
        vectors, _, _ = torch.linalg.svd(torch.cat(sums), full_matrices=False)
        scaled = vectors[:, : self.num_components] * len(vectors) ** 0.5
        sizes = [len(item) for item in sums]
        own_rows = torch.split(scaled, sizes)
        for (batch, shared), own in zip(batches, own_rows, strict=True):
            await parties.tell("unmask", batch, each(shared), own, seed, among=names)
        await parties.ask("distil", self.distil_epochs, self.distil_rate, self.pull, among=names)


def _complete_batches(
    holder: LabelHolder, names: tuple[str, ...]
) -> list[tuple[Batch, dict[str, Tensor]]]:
    """Batches with samples that everybody has, and by party which of its rows these are."""
    plan = holder.parts["train"].plan
    complete = []
    for number in range(plan.num_batches):
        batch = Batch("train", number)
        here = holder.observed(batch, names)
        shared = (here.counts == len(names)).nonzero()[:, 0]
        if len(shared):
            rows = {name: torch.searchsorted(here.rows[name], shared) for name in names}
            complete.append((batch, rows))
    if not complete:
        raise DataError(
            "no training sample is at every party, and method 'vfedtrans' decomposes those; use a "
            "method that does without: laser, plug, ensemble, local"
        )
    return complete


def _starts(widths: list[int]) -> list[int]:
    return [sum(widths[:place]) for place in range(len(widths))]


def _decoder(encoder: nn.Module, inputs: Tensor) -> nn.Module:
    """From a code back to the columns, by one hidden layer half as wide as the two together."""
    encoder.eval()
    with torch.no_grad():
        code = encoder(inputs[:1]).shape[1]
    encoder.train()
    columns = inputs.flatten(1).shape[1]
    hidden = (code + columns) // 2
    return nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, columns))
