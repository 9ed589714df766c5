"""Combinatorial: a predictor of its own for every set of parties.

Paper: LASER-VFL's baseline "Combinatorial", equation (3) and section 5: 2^K - 1 predictors that
share nothing, each with encoders and fusion of its own. A sample trains the predictors of all
subsets of its observed set; the predictor of exactly the observed set answers. Departures:

1. A batch mixes observed sets. A sample counts 1 / (samples of the batch) for each predictor that
   it trains, so a predictor that few samples of the batch train takes a small step.
2. More than ten parties are refused: the cost doubles with each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from operator import mul
from typing import cast

import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, MissingBlock, ProtocolError
from colonnade.core.evaluation_mode import by_running_statistics
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method, MethodInfo, Needs
from colonnade.core.parties import Each, Parties, each
from colonnade.core.party import Party
from colonnade.core.presence import Observed
from colonnade.core.releases import Count, Derivative, Embedding, RollOfSamples
from colonnade.core.verbs import verb
from colonnade.parts.party_sets import EncodersBySet, members, number_of, subsets

__all__ = ["Combinatorial", "CombinatorialParty"]

MOST_PARTIES = 10


class CombinatorialParty(Party):
    """The silo's half: an encoder for every set of parties that it belongs to."""

    # What waits for its gradient. Never part of a checkpoint: those are taken between exchanges.
    _sent: tuple[Batch, dict[int, Tensor]] | None = None

    @verb
    def embed(self, batch: Batch, sets: Count, wanted: RollOfSamples | None) -> Embedding:
        """Send an embedding for each of these sets, by its number, one below the other.

        ``wanted`` says which of its rows each set wants: (set, row); without it, all.
        """
        self.clock.begin()
        self._num_encodings += 1
        with self.own_randomness():
            embeddings = self._encode_for(sets.tolist(), batch, wanted)
        self._sent = (batch, embeddings)
        for _ in embeddings:
            self.clock.work("encode")
        return torch.cat(list(embeddings.values()))

    @verb
    def descend(self, batch: Batch, sets: Count, gradient: Derivative) -> None:
        """Take one step of the encoder of each of these sets; others stay as they are.

        The gradients lie one below the other, as the embeddings did.
        """
        if self._sent is None or self._sent[0] != batch:
            raise ProtocolError(
                f"party '{self.name}' sent no embeddings of batch {batch.number} of part "
                f"'{batch.part}' that wait for a gradient"
            )
        _, embeddings = self._sent
        self._sent = None
        self.begin_local_steps()
        sent = [embeddings[number] for number in sets.tolist()]
        parts = torch.split(gradient, [len(item) for item in sent])
        for embedding, own in zip(sent, parts, strict=True):
            self.step(embedding, own)

    @verb
    def infer_for(self, batch: Batch, sets: RollOfSamples) -> Embedding:
        """For every row the embedding for the predictor of its set: evaluation mode, no graph."""
        kinds = torch.unique(sets)
        wanted = sets == kinds[:, None]
        with self.evaluating():
            found = self._encode_for(kinds.tolist(), batch, wanted)
        places = [row.nonzero()[:, 0] for row in wanted]
        return torch.cat(list(found.values()))[torch.cat(places).argsort()]

    def _encode_for(
        self, sets: list[int], batch: Batch, wanted: Tensor | None
    ) -> dict[int, Tensor]:
        rows = self.rows(batch)
        if wanted is not None and tuple(wanted.shape) != (len(sets), len(rows)):
            raise ProtocolError(
                f"party '{self.name}' has {len(rows)} rows of batch {batch.number}; rows wanted of "
                f"shape {tuple(wanted.shape)} for {len(sets)} sets"
            )
        embeddings = {}
        for place, number in enumerate(sets):
            network = cast(EncodersBySet, self.encoder).for_set(number)
            if network is None:
                raise ProtocolError(f"party '{self.name}' is not in set {number}; ask its members")
            own = rows if wanted is None else rows[wanted[place]]
            is_lone = wanted is not None and len(own) == 1
            with by_running_statistics(network) if is_lone else nullcontext():
                embeddings[number] = network(own)
        return embeddings


@dataclass(frozen=True, kw_only=True)
class Combinatorial(Method):
    """2^K - 1 separate predictors: one for every set of parties that may be there."""

    info = MethodInfo(
        name="combinatorial",
        paper="baseline (LASER-VFL: Combinatorial)",
        summary="a separate predictor for every set of parties; at most ten parties",
        tolerates_missing=True,
    )
    party = CombinatorialParty
    # A sample leaves once per set, by as many encoders: one encoder's noise would not cover it.
    needs = Needs(protectable=False)

    def predictor_sets(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Every nonempty set of parties."""
        if len(names) > MOST_PARTIES:
            raise ConfigError(
                f"method.name: 'combinatorial' needs 2^K - 1 predictors, which are "
                f"{2 ** len(names) - 1} for {len(names)} parties; at most {MOST_PARTIES} parties, "
                "or use a method whose cost grows with K: laser, plug, ensemble, local"
            )
        return tuple(subsets(2 ** len(names) - 1))

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """One step of the predictor of every subset of those who have the samples."""
        names = parties.names
        here = holder.observed(batch, names)
        rows = _rows_of_sets(here, names)
        asked = {name: _sets_of(name, rows, names) for name in here.names}
        answers = await parties.ask(
            "embed",
            batch,
            each({name: torch.tensor(sets) for name, sets in asked.items()}),
            None if here.is_complete else each(_wanted(here, asked, rows)),
            among=here.names,
            num_rows={
                name: sum(len(rows[number]) for number in sets) for name, sets in asked.items()
            },
        )
        embeddings = {
            name: dict(zip(asked[name], _cut(found, asked[name], rows), strict=True))
            for name, found in answers.items()
        }
        gradients: dict[str, dict[int, Tensor]] = {name: {} for name in answers}
        losses, counts = [], []
        for number, places in rows.items():
            some = members(number, names)
            if not all(name in answers for name in some):
                continue  # whoever did not answer takes its sets along: those are not trained
            own = {name: embeddings[name][number] for name in some}
            found = holder.learn(own, batch, None if here.is_complete else places)
            for name, gradient in found.items():
                gradients[name][number] = gradient
            losses.append(holder.last_loss)
            counts.append(len(places))
        if not losses:
            return  # nobody answered, and the run's patience is to go on
        holder.last_loss = sum(map(mul, losses, counts)) / sum(counts)
        trained = {name: torch.tensor(list(items)) for name, items in gradients.items()}
        joined = {name: torch.cat(list(items.values())) for name, items in gradients.items()}
        await parties.tell("descend", batch, each(trained), each(joined), among=answers)

    async def predict(
        self, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
    ) -> Answer:
        """The predictor of exactly those who have the samples."""
        here = holder.observed(batch, parties.names)
        everyone = holder.trained_with(parties.names)
        sets = list(here.sets())
        numbers = torch.empty(here.num_samples, dtype=torch.int64)
        for some, places in sets:
            numbers[places] = number_of(some, everyone)
        own = Each({name: numbers[here.rows[name]] for name in here.names})
        embeddings = await parties.ask("infer_for", batch, own, among=here.names)
        if here.is_complete:
            return Answer(outputs=holder.infer(embeddings), used=here.names)
        outputs, order = [], torch.cat([places for _, places in sets]).argsort()
        for some, places in sets:
            if not all(name in embeddings for name in some):
                silent = sorted(set(some) - set(embeddings))
                raise MissingBlock(f"batch {batch.number}: no answer from {', '.join(silent)}")
            found = {name: here.picked(name, embeddings[name], places) for name in some}
            outputs.append(holder.infer(found))
        return Answer(outputs=torch.cat(outputs)[order], used=here.names)


def _rows_of_sets(here: Observed, names: tuple[str, ...]) -> dict[int, Tensor]:
    """For every set whose members all have some sample of the batch, the places of these."""
    every = subsets(number_of(here.names, names))
    if here.table is None:
        return dict.fromkeys(every, torch.arange(here.num_samples))
    bits = torch.tensor([1 << names.index(name) for name in here.names])
    observed = (here.table.long() * bits).sum(dim=1)
    rows = {number: ((observed & number) == number).nonzero()[:, 0] for number in every}
    return {number: places for number, places in rows.items() if len(places)}


def _sets_of(name: str, sets: Iterable[int], names: tuple[str, ...]) -> list[int]:
    return [number for number in sets if name in members(number, names)]


def _wanted(
    here: Observed, asked: Mapping[str, list[int]], rows: Mapping[int, Tensor]
) -> dict[str, Tensor]:
    """Which of its rows each of a party's sets wants."""
    return {
        name: torch.stack([torch.isin(here.rows[name], rows[number]) for number in sets])
        for name, sets in asked.items()
    }


def _cut(found: Tensor, sets: list[int], rows: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
    """A party's embeddings by set."""
    return torch.split(found, [len(rows[number]) for number in sets])
