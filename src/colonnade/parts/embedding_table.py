"""The label holder's table of last known embeddings, per party and sample, with their delays.

Delays follow VAFL's equation (3): an entry that was just written has delay 1 at the next
iteration, and one more at each iteration after that. The table keeps the iteration of writing,
from which the delay follows; it lives in the label holder's memory and so in every checkpoint.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from colonnade.core.errors import ProtocolError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.parties import Parties

__all__ = ["EmbeddingTable", "KnownEmbeddings"]


@dataclass
class KnownEmbeddings:
    """What the table holds: by party, embeddings and the iteration of every row's writing."""

    iteration: int = 0
    embeddings: dict[str, Tensor] = field(default_factory=dict)
    written: dict[str, Tensor] = field(default_factory=dict)
    # How often an entry of each delay was used, by the delay as text.
    num_delays: dict[str, int] = field(default_factory=dict)


class EmbeddingTable:
    """A view of the embeddings in the memory of a label ``holder``; making one costs nothing."""

    def __init__(self, holder: LabelHolder) -> None:
        self._holder = holder
        self._known = holder.memory.recall(KnownEmbeddings)

    @property
    def iteration(self) -> int:
        """How many updates there were, the paper's k."""
        return self._known.iteration

    def write(self, party: str, batch: Batch, embedding: Tensor) -> None:
        """Store a party's embedding of a batch, written at the current iteration."""
        self._store(party, batch, embedding, self.iteration)

    async def fill(self, parties: Parties, part: str = "train") -> None:
        """Have every party upload every sample once, before iterations count.

        Several batches are under way at a time, so that it takes few round trips.

        Args:
            parties: All parties.
            part: Which part's samples.

        Raises:
            NoAnswer: If nobody answers for longer than the run's patience.
        """
        num_batches = self._holder.parts[part].plan.num_batches
        # By party, the batch to ask for next and the batch that its next answer is for.
        asked, come = dict.fromkeys(parties.names, 0), dict.fromkeys(parties.names, 0)
        for _ in range(min(_WINDOW, num_batches)):
            for name in parties.names:
                self._request(parties, name, part, asked)
        while any(number < num_batches for number in come.values()):
            upload = await parties.arrival()
            if upload is None:  # the run's patience is at an end: go on with those who came
                absent = [name for name, number in come.items() if number < num_batches]
                if len(absent) == len(come):
                    raise parties.nobody_answered()
                parties.give_up(absent)
                return
            name = upload.party
            # "At -1", so that its delay at iteration 0 is 1.
            self._store(name, Batch(part, come[name]), upload.value, -1)
            come[name] += 1
            if asked[name] < num_batches:
                self._request(parties, name, part, asked)

    def _request(self, parties: Parties, name: str, part: str, asked: dict[str, int]) -> None:
        parties.start(name, "refresh", Batch(part, asked[name]))
        asked[name] += 1

    def _store(self, party: str, batch: Batch, embedding: Tensor, iteration: int) -> None:
        positions = self._positions(batch)
        if party not in self._known.embeddings:
            num_samples = self._holder.parts[batch.part].plan.num_samples
            self._known.embeddings[party] = embedding.new_zeros(num_samples, embedding.shape[1])
            # Never written: as old as can be.
            self._known.written[party] = torch.full((num_samples,), _NEVER)
        table = self._known.embeddings[party]
        # Torch would spread a single row over the whole batch.
        if embedding.shape != (len(positions), table.shape[1]):
            raise ProtocolError(
                f"party '{party}' sent an embedding of shape {tuple(embedding.shape)} for batch "
                f"{batch.number}; expected {(len(positions), table.shape[1])}"
            )
        table[positions] = embedding
        self._known.written[party][positions] = iteration

    def advance(self) -> None:
        """One iteration is over."""
        self._known.iteration += 1

    def knows(self, party: str, batch: Batch) -> bool:
        """Whether every sample of a batch was seen from a party at least once.

        Args:
            party: Whose entries.
            batch: The samples.

        Returns:
            True if so.
        """
        return self.delay(party, batch) <= self.iteration + 1

    def delay(self, party: str, batch: Batch) -> int:
        """The largest delay τ among a party's entries of a batch.

        Args:
            party: Whose entries.
            batch: The samples.

        Returns:
            0 if all are fresh; beyond all bounds if there is a sample that it never sent.
        """
        written = self._known.written.get(party)
        oldest = _NEVER if written is None else int(written[self._positions(batch)].min())
        return self.iteration - oldest

    def read(
        self, batch: Batch, parties: Iterable[str], *, fresh: Container[str]
    ) -> dict[str, Tensor]:
        """Read last known embeddings of a batch, and note the delays of those not fresh.

        Args:
            batch: The samples.
            parties: Whose entries.
            fresh: Those who have just sent theirs.

        Returns:
            By party; a party that has not sent every sample of the batch yet is absent.
        """
        positions = self._positions(batch)
        found = {}
        for party in parties:
            written = self._known.written.get(party)
            if written is None:
                continue
            written = written[positions]
            if int(written.min()) == _NEVER:
                continue
            found[party] = self._known.embeddings[party][positions]
            if party not in fresh:
                self._note(self.iteration - written)
        return found

    def _note(self, delays: Tensor) -> None:
        counts = self._known.num_delays
        values, numbers = torch.unique(delays, return_counts=True)
        for value, number in zip(values.tolist(), numbers.tolist(), strict=True):
            counts[str(value)] = counts.get(str(value), 0) + number

    def delays(self) -> Mapping[int, int]:
        """How often an entry of each delay was used.

        Returns:
            Counts by delay, ascending.
        """
        counts = self._known.num_delays
        return {int(delay): counts[delay] for delay in sorted(counts, key=int)}

    def _positions(self, batch: Batch) -> Tensor:
        return self._holder.parts[batch.part].plan.positions(batch.number)


_NEVER = -(2**40)
# So many batches of each party are under way at a time while the table is filled.
_WINDOW = 16
