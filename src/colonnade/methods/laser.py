"""LASER-VFL: any set of present blocks trains, and any set predicts.

Paper: Valdeira, Wang and Chi, "Vertical federated learning with missing features during training
and inference" (2025), Algorithms 1 and 2, equations (4) to (8).

Letters: K_o the parties that have a batch's samples, m = |K_o|; f_k an encoder, g_k the head of
party k; S_ki the set of i parties, k among them, that k sampled; a_i = C(m - 1, i - 1) / i.

Departures: messages go through the label holder, parties have no links between them. Labels may
stay with the label holder, which then computes dL/dlogits for every head (``labels``); the paper
gives everybody the labels. ``heads = "label_holder"`` has one network for all sets at the label
holder instead of one per party. ``weights = "normalised"`` divides a_i by their sum, which grows as
2^m / m. The normalisation by observation probability is relative: blocks that are equally often
there change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from colonnade.core.block_sets import (
    PassOverSets,
    SetWeights,
    rarity_of_sets,
    sample_sets,
    set_weights,
    weighted_losses,
)
from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Method, MethodInfo
from colonnade.core.parties import Each, Parties, each
from colonnade.core.party import Party
from colonnade.core.seeds import derive_seed
from colonnade.core.task import Task
from colonnade.core.verbs import verb

__all__ = ["Laser", "LaserParty", "Ring"]


@dataclass(frozen=True)
class _Forward:
    """A head's pass over all its sets, until its gradient comes."""

    batch: Batch
    over_sets: PassOverSets
    rarity: Tensor | None


class LaserParty(Party):
    """The silo's half: f_k, g_k and x_k never leave it."""

    _forward_pass: _Forward | None = None
    # dL/df_k of the own head and the head's own gradients, until the others' part comes.
    _own_part: tuple[Batch, Tensor, tuple[Tensor, ...]] | None = None

    @property
    def head(self) -> nn.Module:
        """g_k."""
        return self.model["head"]

    @verb
    def embed(self, batch: Batch) -> Tensor:
        """Send f_k(x_k)."""
        self._forward_pass = self._own_part = None
        return self.encode(batch)

    @verb
    def descend(self, batch: Batch, gradient: Tensor) -> None:
        """Add the others' part of dL/df_k to the own one and take one step, the head's too."""
        self.begin_local_steps()
        further: list[tuple[nn.Parameter, Tensor]] = []
        if self._own_part is not None and self._own_part[0] == batch:
            _, own, gradients = self._own_part
            gradient = own + gradient
            further = list(zip(self.head.parameters(), gradients, strict=True))
        self._forward_pass = self._own_part = None
        self.step(self.encode(batch), gradient, further)

    # Labels private

    @verb
    def outputs(self, batch: Batch, others: Tensor, rarity: Tensor | None) -> Tensor:
        """Sample S_k1 .. S_km and send g_k of their averages; ``others`` follow it in the ring."""
        seed = derive_seed(self._seed, "sets", batch.part, batch.number)
        sets = sample_sets(len(others) + 1, seed, others.dtype, own=True)
        with self._drawing():
            over_sets = PassOverSets(self.head, sets, self.encode(batch), others)
        factors = None if rarity is None else rarity_of_sets(sets, rarity)
        self._forward_pass = _Forward(batch, over_sets, factors)
        return over_sets.outputs

    @verb
    def backward(self, batch: Batch, gradient: Tensor) -> Tensor:
        """From dL/dlogits to dL/df_j of the others, in the order in which they came."""
        known = self._forward_pass
        if known is None or known.batch != batch or known.over_sets.outputs.shape != gradient.shape:
            raise ProtocolError(
                f"party '{self.name}' has no outputs of batch {batch.number} that await a "
                f"gradient of shape {tuple(gradient.shape)}"
            )
        if known.rarity is not None:
            gradient = gradient * known.rarity[:, None, None]
        return self._pull(known, gradient)

    # Labels shared

    @verb
    def learn(
        self, batch: Batch, others: Tensor, weights: Tensor, rarity: Tensor | None
    ) -> Mapping[str, Tensor]:
        """Both of the above with labels of its own: its loss, and dL/df_j of the others."""
        self.outputs(batch, others, rarity)
        known = self._forward_pass
        assert known is not None
        losses, gradient = _task_gradients(
            known.over_sets.outputs[None], self.replica.targets(batch), weights, self.replica.task
        )
        if known.rarity is not None:
            gradient = gradient * known.rarity[:, None, None]
        return {"loss": losses[0], "gradient": self._pull(known, gradient[0])}

    # Inference

    @verb
    def predict(self, average: Tensor) -> Tensor:
        """g_k of the average over the blocks that are there (Algorithm 2, line 4)."""
        self.model.eval()
        try:
            with torch.no_grad():
                outputs: Tensor = self.head(average)
        finally:
            self.model.train()
        return outputs

    def _drawing(self) -> AbstractContextManager[None]:
        return nullcontext() if self._deterministic else self.own_randomness()

    def _pull(self, known: _Forward, gradient: Tensor) -> Tensor:
        """Back-propagate through the head; keep the own part, give the others'."""
        own, others, of_parameters = known.over_sets.pull(gradient)
        self._forward_pass = None
        self._own_part = (known.batch, own, of_parameters)
        return others


class Ring:
    """Embeddings in party order, without end: party k's others are the m - 1 that follow it.

    Each party gets all but its own, as one tensor that is a view until it crosses the link.
    """

    def __init__(self, embeddings: Mapping[str, Tensor]) -> None:
        self.places = {name: place for place, name in enumerate(embeddings)}
        blocks = list(embeddings.values())
        self._twice = torch.stack(blocks + blocks[:-1])

    def __len__(self) -> int:
        return len(self.places)

    @property
    def blocks(self) -> Tensor:
        """Every embedding once: parties x samples x size."""
        return self._twice[: len(self)]

    def others(self) -> dict[str, Tensor]:
        """What each party gets."""
        return {
            name: self._twice[place + 1 : place + len(self)] for name, place in self.places.items()
        }

    def turned(self, values: Mapping[str, float]) -> dict[str, Tensor]:
        """A number per party, in the order in which each party sees them: itself first."""
        found = _numbers(values, dict(zip(self.places, self.blocks, strict=True)))
        return {name: found.roll(-place) for name, place in self.places.items()}

    def sums(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """For each party the sum of what the others' heads gave for its embedding."""
        total = torch.zeros_like(self.blocks)
        for name, found in gradients.items():
            place = self.places[name]
            behind = len(self) - place - 1
            total[place + 1 :] += found[:behind]
            total[:place] += found[behind:]
        return {name: total[place] for name, place in self.places.items()}


def _numbers(values: Mapping[str, float], embeddings: Mapping[str, Tensor]) -> Tensor:
    """A number per embedding, in their order and of their kind."""
    dtype = next(iter(embeddings.values())).dtype
    return torch.tensor([values[name] for name in embeddings], dtype=dtype)


def _task_gradients(
    outputs: Tensor, targets: Tensor, weights: Tensor, task: Task
) -> tuple[Tensor, Tensor]:
    """Per head the weighted mean of its sets' losses; and dL/dlogits of equation (7).

    ``outputs`` is heads x sets x samples x outputs.
    """
    num_heads, num_sets, num_samples, _ = outputs.shape
    leaf = outputs.detach().requires_grad_()
    if num_heads * num_sets == 1:
        # One party alone weighs 1: the very operations of training by itself.
        loss = task.loss(leaf[0, 0], targets)
        return loss.detach()[None], torch.autograd.grad(loss, leaf)[0]
    repeated = targets.repeat(num_heads * num_sets, *(1 for _ in targets.shape[1:]))
    losses = task.losses(leaf.flatten(0, 2), repeated).view(num_heads * num_sets, num_samples)
    weights = weights.to(outputs.dtype)
    (gradient,) = torch.autograd.grad(weighted_losses(losses, weights.repeat(num_heads)), leaf)
    means = losses.detach().view(num_heads, num_sets, num_samples).mean(2)
    return means @ (weights / weights.sum()), gradient


@dataclass(frozen=True, kw_only=True)
class Laser(Method):
    """A head at every party, trained on sampled sets of the blocks that are there (Algorithm 1)."""

    info = MethodInfo(
        name="laser",
        paper="LASER-VFL (Valdeira et al. 2025)",
        summary="learns from any set of present blocks and predicts from any; a head per party",
        tolerates_slow=False,
        tolerates_missing=True,
        heterogeneous_models=True,
        private_labels=True,
    )
    party = LaserParty
    adds_embeddings = True

    labels: Literal["private", "shared"] = "private"
    heads: Literal["all", "label_holder"] = "all"
    weights: SetWeights = "normalised"
    normalise_presence: bool = False

    def __post_init__(self) -> None:
        if self.heads == "label_holder" and self.labels == "shared":
            raise ConfigError(
                'labels: "shared" is for heads at the parties; with heads = "label_holder" nobody '
                'else needs them, so leave labels = "private"'
            )

    @property
    def has_heads(self) -> bool:
        """Every party's g_k."""
        return self.heads == "all"

    @property
    def has_fusion(self) -> bool:
        """The one network of ``heads = "label_holder"``."""
        return self.heads == "label_holder"

    @property
    def shares_labels(self) -> bool:
        """Whether parties need labels of their own."""
        return self.labels == "shared"

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Algorithm 1, lines 3 to 9."""
        observed = holder.observed(batch, parties.names)
        embeddings = await parties.ask("embed", batch, among=observed)
        if not embeddings:
            holder.memory["num_left_out"] = holder.memory.get("num_left_out", 0) + 1
            return
        if self.heads == "label_holder":
            gradients = self._fuse_sets(holder, embeddings, batch)
            await parties.tell("descend", batch, each(gradients), among=embeddings)
            return
        ring = Ring(embeddings)
        if self.labels == "private":
            found = await self._help(holder, parties, batch, ring, embeddings)
        else:
            found = await self._learn(holder, parties, batch, ring, embeddings)
        await parties.tell("descend", batch, each(ring.sums(found)), among=embeddings)

    async def _help(
        self,
        holder: LabelHolder,
        parties: Parties,
        batch: Batch,
        ring: Ring,
        embeddings: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Lines 5 to 7 with labels at the label holder only: logits up, dL/dlogits down."""
        others, rarity = each(ring.others()), self._rarity_by_party(holder, batch, ring)
        outputs = await parties.ask("outputs", batch, others, rarity, among=embeddings)
        if not outputs:
            return {}
        holder.clock.begin()
        losses, gradients = _task_gradients(
            torch.stack(list(outputs.values())),
            holder.targets(batch),
            set_weights(len(ring), self.weights, own=True),
            holder.task,
        )
        holder.record_loss(losses.mean().item(), embeddings, outputs)
        holder.clock.work("fuse")
        own = dict(zip(outputs, gradients, strict=True))
        return await parties.ask("backward", batch, each(own), among=outputs)

    async def _learn(
        self,
        holder: LabelHolder,
        parties: Parties,
        batch: Batch,
        ring: Ring,
        embeddings: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Lines 5 to 7 as they stand: every party has the labels."""
        others, rarity = each(ring.others()), self._rarity_by_party(holder, batch, ring)
        weights = set_weights(len(ring), self.weights, own=True)
        answers = await parties.ask("learn", batch, others, weights, rarity, among=embeddings)
        if not answers:
            return {}
        losses = {name: item["loss"] for name, item in answers.items()}
        mean = torch.stack(list(losses.values())).mean()
        holder.record_loss(mean.item(), embeddings, losses)
        return {name: item["gradient"] for name, item in answers.items()}

    def _rarity(
        self, holder: LabelHolder, batch: Batch, names: Iterable[str]
    ) -> dict[str, float] | None:
        """Per block the common probability of being there / its own; none if they don't count."""
        known = holder.presence.get(batch.part)
        if not self.normalise_presence or known is None:
            return None
        shares = {name: share for name, share in known.shares.items() if share > 0}
        common = math.exp(sum(map(math.log, shares.values())) / len(shares))
        return {name: common / shares[name] for name in names}

    def _rarity_by_party(self, holder: LabelHolder, batch: Batch, ring: Ring) -> Each | None:
        """The same, as each party sees its ring."""
        rarity = self._rarity(holder, batch, ring.places)
        return None if rarity is None else each(ring.turned(rarity))

    def _fuse_sets(
        self, holder: LabelHolder, embeddings: Mapping[str, Tensor], batch: Batch
    ) -> dict[str, Tensor]:
        """One network for all sets, own block or not: a set of every size, any members."""
        holder.begin_local_steps()
        weights = set_weights(len(embeddings), self.weights, own=False)
        rarity = self._rarity(holder, batch, embeddings)
        factors = None if rarity is None else _numbers(rarity, embeddings)
        gradients = holder.gradients_over_sets(embeddings, batch, weights, factors)
        holder.step()
        return gradients

    async def predict_each(
        self, holder: LabelHolder, parties: Parties, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Algorithm 2: every party that has the samples predicts from all that is there."""
        if self.heads == "label_holder":
            return {}
        observed = holder.observed(batch, parties.names)
        embeddings = await parties.ask("infer", batch, among=observed)
        average = torch.stack(list(embeddings.values())).mean(0)
        answers: Mapping[str, Tensor] = await parties.ask("predict", average, among=embeddings)
        return answers

    async def predict(self, holder: LabelHolder, parties: Parties, batch: Batch) -> Tensor:
        """The federation's one answer: the mean of the raw outputs of all heads that predict."""
        if self.heads == "label_holder":
            observed = holder.observed(batch, parties.names)
            return holder.infer(await parties.ask("infer", batch, among=observed))
        return self.answer_from(
            holder, parties, batch, await self.predict_each(holder, parties, batch)
        )

    def answer_from(
        self, holder: LabelHolder, parties: Parties, batch: Batch, each: Mapping[str, Tensor]
    ) -> Tensor:
        """The mean of the raw outputs of all heads that predict."""
        return torch.stack(list(each.values())).mean(0)

    def findings(self, holder: LabelHolder) -> Mapping[str, Any]:
        """How many exchanges were left out because nobody answered."""
        return {"num_left_out": holder.memory.get("num_left_out", 0)}
