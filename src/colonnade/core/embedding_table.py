"""The label holder's table of last known embeddings, per party and sample, with their delays.

Delays follow VAFL's equation (3): an entry that was just written has delay 1 at the next
iteration, and one more at each iteration after that. The table keeps the iteration of writing,
from which the delay follows; it lives in the label holder's memory and so in every checkpoint.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.parties import Parties

__all__ = ["EmbeddingTable"]


class EmbeddingTable:
    """A view of ``holder.memory``; making one costs nothing."""

    def __init__(self, holder: LabelHolder) -> None:
        self._holder = holder
        self._memory: dict[str, Any] = holder.memory.setdefault(
            "table", {"iteration": 0, "embeddings": {}, "written": {}, "num_delays": {}}
        )

    @property
    def iteration(self) -> int:
        """The paper's k: how many updates there were."""
        iteration: int = self._memory["iteration"]
        return iteration

    def write(self, party: str, batch: Batch, embedding: Tensor) -> None:
        """Store a party's embedding of a batch, written at the current iteration."""
        self._store(party, batch, embedding, self.iteration)

    async def fill(self, parties: Parties, part: str = "train") -> None:
        """Have every party upload every sample once, before iterations count."""
        for number in range(self._holder.parts[part].plan.num_batches):
            batch = Batch(part, number)
            for name, embedding in (await parties.ask("refresh", batch)).items():
                # "At -1", so that its delay at iteration 0 is 1.
                self._store(name, batch, embedding, -1)

    def _store(self, party: str, batch: Batch, embedding: Tensor, iteration: int) -> None:
        positions = self._positions(batch)
        if party not in self._memory["embeddings"]:
            num_samples = self._holder.parts[batch.part].plan.num_samples
            self._memory["embeddings"][party] = embedding.new_zeros(num_samples, embedding.shape[1])
            # Never written: as old as can be.
            self._memory["written"][party] = torch.full((num_samples,), _NEVER)
        table = self._memory["embeddings"][party]
        # Torch would spread a single row over the whole batch.
        if embedding.shape != (len(positions), table.shape[1]):
            raise ProtocolError(
                f"party '{party}' sent an embedding of shape {tuple(embedding.shape)} for batch "
                f"{batch.number}; expected {(len(positions), table.shape[1])}"
            )
        table[positions] = embedding
        self._memory["written"][party][positions] = iteration

    def advance(self) -> None:
        """One iteration is over."""
        self._memory["iteration"] += 1

    def knows(self, party: str, batch: Batch) -> bool:
        """Whether every sample of a batch was seen from this party at least once."""
        return self.delay(party, batch) <= self.iteration + 1

    def delay(self, party: str, batch: Batch) -> int:
        """The largest delay τ among a party's entries of a batch; 0 for fresh ones.

        Beyond all bounds if there is a sample that it never sent.
        """
        written = self._memory["written"].get(party)
        oldest = _NEVER if written is None else int(written[self._positions(batch)].min())
        return self.iteration - oldest

    def read(
        self, batch: Batch, parties: Iterable[str], *, fresh: Container[str]
    ) -> dict[str, Tensor]:
        """Last known embeddings of a batch; notes the delays of those not fresh.

        A party that has not sent every sample of it yet is absent.
        """
        positions = self._positions(batch)
        found = {}
        for party in parties:
            written = self._memory["written"].get(party)
            if written is None:
                continue
            written = written[positions]
            if int(written.min()) == _NEVER:
                continue
            found[party] = self._memory["embeddings"][party][positions]
            if party not in fresh:
                self._note(self.iteration - written)
        return found

    def _note(self, delays: Tensor) -> None:
        counts: dict[str, int] = self._memory["num_delays"]
        values, numbers = torch.unique(delays, return_counts=True)
        for value, number in zip(values.tolist(), numbers.tolist(), strict=True):
            counts[str(value)] = counts.get(str(value), 0) + number

    def delays(self) -> Mapping[int, int]:
        """How often an entry of each delay was used."""
        counts: dict[str, int] = self._memory["num_delays"]
        return {int(delay): counts[delay] for delay in sorted(counts, key=int)}

    def _positions(self, batch: Batch) -> Tensor:
        return self._holder.parts[batch.part].plan.positions(batch.number)


_NEVER = -(2**40)
