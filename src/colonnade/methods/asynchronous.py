"""Asynchronous training of the thesis: the label holder never waits for the slow ones.

Paper: the thesis, section 5.4.2. An upload is combined with the last known embeddings of the
others for the same batch; only the uploader gets a gradient back. Departures: none known. Before
training every party uploads every sample once, and the label holder's learning rate is divided by
the number of parties, both as in the thesis. Every party goes through the same batches in the
same order, at its own pace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from colonnade.core.errors import ConfigError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo
from colonnade.core.parties import Parties
from colonnade.parts.embedding_table import EmbeddingTable
from colonnade.parts.local_steps import LocalStepsParty
from colonnade.parts.method_memory import OwnPace
from colonnade.parts.split_step import predict_by_fusion

__all__ = ["Asynchronous"]


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Method):
    """An exchange is one party's upload and the answer to it."""

    info = MethodInfo(
        name="async",
        paper="thesis 5.4.2",
        summary="every upload is answered at once from the last known embeddings of the others",
        tolerates_slow=True,
    )
    party = LocalStepsParty
    predict = predict_by_fusion

    local_steps: int = 1

    def __post_init__(self) -> None:
        if self.local_steps < 1:
            raise ConfigError(f"local_steps: must be at least 1, got {self.local_steps}")

    async def begin(self, holder: LabelHolder, parties: Parties) -> None:
        """Every party uploads every sample once; then each one is on its own."""
        holder.scale_learning_rate(1 / len(parties.names))
        await EmbeddingTable(holder).fill(parties)
        pace = holder.memory.recall(OwnPace)
        pace.next = dict.fromkeys(parties.names, 0)
        for name in parties.names:
            pace.request(parties, name)

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Whoever comes first: store, combine, update, answer."""
        upload = await parties.arrival()
        if upload is None:
            raise parties.nobody_answered()
        name, pace = upload.party, holder.memory.recall(OwnPace)
        uploaded = pace.uploaded(name)
        table = EmbeddingTable(holder)
        table.write(name, uploaded, upload.value)
        known = table.read(uploaded, parties.names, fresh=[name])
        gradient = holder.learn(known, uploaded)[name]
        await parties.tell("descend", uploaded, gradient, self.local_steps, among=[name])
        pace.request(parties, name)
        table.advance()

    def exchanges_per_epoch(self, num_batches: int, num_parties: int) -> int:
        """Every party uploads every batch."""
        return num_batches * num_parties

    def findings(self, holder: LabelHolder) -> Mapping[str, Any]:
        """How often an embedding of each delay was used."""
        return {"delays": EmbeddingTable(holder).delays()}
