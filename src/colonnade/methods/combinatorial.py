"""Combinatorial: a predictor of its own for every set of parties.

Paper: LASER-VFL's baseline "Combinatorial", equation (3) and section 5: 2^K - 1 predictors that
share nothing, each with encoders and fusion of its own. A batch trains the predictors of all
subsets of its observed set; the predictor of exactly the observed set answers. Departures: none
known. More than ten parties are refused: the cost doubles with each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo
from colonnade.core.parties import Parties, each
from colonnade.core.party import Party
from colonnade.core.party_sets import EncodersBySet, members, number_of, subsets
from colonnade.core.verbs import verb

__all__ = ["Combinatorial", "CombinatorialParty"]

MOST_PARTIES = 10


class CombinatorialParty(Party):
    """The silo's half: an encoder for every set of parties that it belongs to."""

    # What waits for its gradient. Never part of a checkpoint: those are taken between exchanges.
    _sent: tuple[Batch, dict[int, Tensor]] | None = None

    @verb
    def embed(self, batch: Batch, sets: Tensor) -> Tensor:
        """Send an embedding for each of these sets, by its number: (set, sample, feature)."""
        self.clock.begin()
        self._num_encodings += 1
        with self.own_randomness():
            embeddings = self._encode_for(sets.tolist(), batch)
        self._sent = (batch, embeddings)
        for _ in embeddings:
            self.clock.work("encode")
        return torch.stack(list(embeddings.values()))

    @verb
    def descend(self, batch: Batch, sets: Tensor, gradient: Tensor) -> None:
        """Take one step of the encoder of each of these sets; others stay as they are."""
        if self._sent is None or self._sent[0] != batch:
            raise ProtocolError(
                f"party '{self.name}' sent no embeddings of batch {batch.number} of part "
                f"'{batch.part}' that wait for a gradient"
            )
        _, embeddings = self._sent
        self._sent = None
        self.begin_local_steps()
        for number, own in zip(sets.tolist(), gradient, strict=True):
            self.step(embeddings[number], own)

    @verb
    def infer_for(self, batch: Batch, number: int) -> Tensor:
        """The embedding for the predictor of one set: evaluation mode, no graph."""
        self.model.eval()
        try:
            with torch.no_grad():
                return self._encode_for([number], batch)[number]
        finally:
            self.model.train()

    def _encode_for(self, sets: list[int], batch: Batch) -> dict[int, Tensor]:
        rows = self.rows(batch)
        embeddings = {}
        for number in sets:
            network = cast(EncodersBySet, self.encoder).for_set(number)
            if network is None:
                raise ProtocolError(f"party '{self.name}' is not in set {number}; ask its members")
            embeddings[number] = network(rows)
        return embeddings


@dataclass(frozen=True, kw_only=True)
class Combinatorial(Method):
    """2^K - 1 separate predictors: one for every set of parties that may be there."""

    info = MethodInfo(
        name="combinatorial",
        paper="baseline (LASER-VFL: Combinatorial)",
        summary="a separate predictor for every set of parties; at most ten parties",
        tolerates_slow=False,
        tolerates_missing=True,
        heterogeneous_models=True,
        private_labels=True,
    )
    party = CombinatorialParty
    # A sample leaves once per set, by as many encoders: one encoder's noise would not cover it.
    can_be_protected = False

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
        asked = _own_sets(here, names)
        answers = await parties.ask("embed", batch, each(asked), among=here)
        embeddings = {
            name: dict(zip(asked[name].tolist(), stacked, strict=True))
            for name, stacked in answers.items()
        }
        gradients: dict[str, list[Tensor]] = {name: [] for name in answers}
        losses = []
        # Whoever did not answer takes its sets along: those are not trained.
        for number in subsets(number_of(tuple(answers), names)):
            own = {name: embeddings[name][number] for name in members(number, names)}
            for name, gradient in holder.learn(own, batch).items():
                gradients[name].append(gradient)
            losses.append(holder.last_loss)
        if not losses:
            return  # nobody answered, and the run's patience is to go on
        holder.last_loss = sum(losses) / len(losses)
        trained = _own_sets(tuple(answers), names)
        stacks = {name: torch.stack(items) for name, items in gradients.items()}
        await parties.tell("descend", batch, each(trained), each(stacks), among=answers)

    async def predict(self, holder: LabelHolder, parties: Parties, batch: Batch) -> Tensor:
        """The predictor of exactly those who have the samples."""
        here = holder.observed(batch, parties.names)
        number = number_of(here, holder.trained_with(parties.names))
        return holder.infer(await parties.ask("infer_for", batch, number, among=here))


def _own_sets(here: tuple[str, ...], names: tuple[str, ...]) -> dict[str, Tensor]:
    """For each party that is here, the subsets of those here that it belongs to."""
    every = subsets(number_of(here, names))
    return {
        name: torch.tensor([item for item in every if name in members(item, names)])
        for name in here
    }
