"""VAFL: parties upload when they are ready; nobody waits for anybody.

Paper: Chen et al. 2020, Algorithm 1 (asynchronous), Algorithm 2 (t-synchronous), section 2.3
(bounded delay), equations (2) to (4). Departures:

1. The label holder names each party's next batch, from a stream of that party's own; the paper
   lets the party draw it. No row number crosses. The stream goes through all samples in a new
   order each time, so that a party has every sample equally often; the paper draws every batch
   independently and uniformly.
2. A query and the upload before it are one message; so are the gradient and the request for the
   next upload.
3. The initial table (one upload of every sample) is counted in bytes and moves the fabric's clock;
   on a simulated clock a run's ``elapsed`` counts exchanges only. The paper does not say.
4. The label holder's learning rate is divided by the number of parties, as in the paper's
   experiments, and multiplied by t, of which the paper says nothing.
5. A party that does not send a fresh embedding when asked under D is left out of that update, if
   the run's patience says to continue; the paper waits.

Activations by independent Poisson processes are a speed of the simulated clock (exponential
``encode``). Legend: t: ``num_uploads``; D: ``max_delay``; τ: an entry's delay, equation (3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from colonnade.core.errors import ConfigError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo
from colonnade.core.parties import Arrival, Parties
from colonnade.parts.embedding_table import EmbeddingTable
from colonnade.parts.method_memory import OwnPace
from colonnade.parts.split_step import SplitParty, predict_by_fusion

__all__ = ["VAFL"]

# Batches go on over epochs, so a party's own stream is a far-off range of epochs.
_EPOCHS_APART = 1_000_000


@dataclass(frozen=True, kw_only=True)
class VAFL(Method):
    """An exchange is one update: after one upload (Algorithm 1) or t of them (Algorithm 2)."""

    info = MethodInfo(
        name="vafl",
        paper="VAFL (Chen et al. 2020), Algorithms 1 and 2",
        summary="asynchronous: an upload is answered at once from the last known of the others",
        tolerates_slow=True,
    )
    party = SplitParty
    predict = predict_by_fusion

    num_uploads: int = 1
    max_delay: int | None = None
    batches: Literal["own", "shared"] = "own"

    def __post_init__(self) -> None:
        if self.num_uploads < 1:
            raise ConfigError(f"num_uploads: must be at least 1, got {self.num_uploads}")
        if self.max_delay is not None and self.max_delay < 1:
            raise ConfigError(f"max_delay: must be at least 1, got {self.max_delay}")

    async def begin(self, holder: LabelHolder, parties: Parties) -> None:
        """Every party uploads every sample once; then each one is on its own."""
        if self.num_uploads > len(parties.names):
            raise ConfigError(
                f"method.num_uploads: {self.num_uploads} of {len(parties.names)} parties can't be"
            )
        holder.scale_learning_rate(self.num_uploads / len(parties.names))
        await EmbeddingTable(holder).fill(parties)
        num_batches, pace = holder.parts["train"].plan.num_batches, holder.memory.recall(OwnPace)
        for place, name in enumerate(parties.names):
            own = 0 if self.batches == "shared" else (place + 1) * _EPOCHS_APART
            pace.next[name] = own * num_batches
            pace.request(parties, name)

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Lines 8 to 13: take t uploads, update, answer those who uploaded."""
        table = EmbeddingTable(holder)
        uploads: list[tuple[str, Batch]] = []
        while len(uploads) < self.num_uploads:
            upload = await parties.arrival()
            if upload is None and not uploads:
                raise parties.nobody_answered()
            if upload is None:
                break  # the run's patience is at an end: go on with those who came
            uploads.append(self._store(table, holder, upload))
        gradients = await self._update(holder, parties, table, uploads)
        for name, uploaded in uploads:
            if name in gradients:
                await parties.tell("descend", uploaded, gradients[name], among=[name])
            holder.memory.recall(OwnPace).request(parties, name)
        table.advance()

    def _store(
        self, table: EmbeddingTable, holder: LabelHolder, upload: Arrival
    ) -> tuple[str, Batch]:
        uploaded = holder.memory.recall(OwnPace).uploaded(upload.party)
        table.write(upload.party, uploaded, upload.value)
        return upload.party, uploaded

    async def _update(
        self,
        holder: LabelHolder,
        parties: Parties,
        table: EmbeddingTable,
        uploads: list[tuple[str, Batch]],
    ) -> dict[str, Tensor]:
        """One update of θ_0 over the uploaded batches, and dL/dh for each uploader."""
        batches = list(dict.fromkeys(uploaded for _, uploaded in uploads))
        if self.max_delay is not None:
            for batch in batches:
                await self._freshen(parties, table, batch)
        usable = self._usable(parties.names, table, batches)
        known = []
        for batch in batches:
            fresh = [name for name, uploaded in uploads if uploaded == batch]
            known.append(table.read(batch, usable, fresh=fresh))
        gradients = _learn(holder, known, batches)
        own = {name: gradients[batches.index(uploaded)] for name, uploaded in uploads}
        return {name: found[name] for name, found in own.items() if name in found}

    async def _freshen(self, parties: Parties, table: EmbeddingTable, batch: Batch) -> None:
        """Section 2.3: whoever has an entry older than D is asked for a fresh one."""
        assert self.max_delay is not None
        stale = [name for name in parties.names if table.delay(name, batch) > self.max_delay]
        for name, embedding in (await parties.ask("refresh", batch, among=stale)).items():
            table.write(name, batch, embedding)

    def _usable(
        self, names: tuple[str, ...], table: EmbeddingTable, batches: list[Batch]
    ) -> list[str]:
        """Who has entries for all the batches, none older than D (one may not have answered)."""
        most = table.iteration + 1 if self.max_delay is None else self.max_delay
        return [
            name for name in names if all(table.delay(name, batch) <= most for batch in batches)
        ]

    def exchanges_per_epoch(self, num_batches: int, num_parties: int) -> int:
        """As many as there are uploads of every party's every batch, t at a time."""
        return max(1, num_batches * num_parties // self.num_uploads)

    def findings(self, holder: LabelHolder) -> Mapping[str, Any]:
        """How often an embedding of each delay was used."""
        return {"delays": EmbeddingTable(holder).delays()}


def _learn(
    holder: LabelHolder, embeddings: Sequence[Mapping[str, Tensor]], batches: Sequence[Batch]
) -> list[dict[str, Tensor]]:
    """One update over several batches together; dL/dh_k of each batch's own mean loss."""
    if len(batches) == 1:
        return [holder.learn(embeddings[0], batches[0])]
    sizes = [len(next(iter(item.values()))) for item in embeddings]
    joined = {name: torch.cat([item[name] for item in embeddings]) for name in embeddings[0]}
    holder.begin_local_steps()
    gradients = holder.gradients(joined, *batches)
    holder.step()
    # The joint loss averages over all the samples; each batch's own, over its own only.
    split = {name: torch.split(item, sizes) for name, item in gradients.items()}
    return [
        {name: split[name][at] * (sum(sizes) / size) for name in split}
        for at, size in enumerate(sizes)
    ]
