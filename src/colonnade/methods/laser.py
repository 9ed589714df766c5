"""LASER-VFL: any set of present blocks trains, and any set predicts.

Paper: Valdeira, Wang and Chi, "Vertical federated learning with missing features during training
and inference" (2025), Algorithms 1 and 2, equations (4) to (8).

Letters: K_o the parties that have a sample, m = |K_o|; f_k an encoder, g_k the head of party k;
S_ki the set of i parties, k among them, that k sampled; a_i = C(m - 1, i - 1) / i.

Departures:

1. A batch mixes samples with different K_o. Each sample counts 1 / |B|, with the sets and weights
   of its own K_o, so that Lemma 1 holds for the batch as it is drawn; samples of one K_o share the
   sampled sets. The paper's batches have one K_o each. Those of rare sets are tiny and take steps
   like the others, so a sample weighs by the size of its batch, against its Assumption 2.
2. Messages go through the label holder, parties have no links between them.
3. Labels may stay with the label holder, which then computes dL/dlogits for every head
   (``labels``); the paper gives everybody the labels.
4. ``heads = "label_holder"`` has one network for all sets at the label holder, not one per party.
5. ``weights``: "normalised" divides a_i by their sum (2^m - 1) / m; "whole" adds to all m blocks.
6. Normalisation by observation probability is relative: equally frequent blocks change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.core.label_holder import LabelHolder
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method, MethodInfo, Needs
from colonnade.core.parties import Each, Parties, each
from colonnade.core.party import Party
from colonnade.core.presence import Observed
from colonnade.core.releases import (
    Average,
    Derivative,
    Embedding,
    Loss,
    Output,
    RollOfSamples,
    Weights,
)
from colonnade.core.seeds import derive_seed
from colonnade.core.verbs import verb
from colonnade.parts.block_sets import (
    PassOverSets,
    SetWeights,
    rarity_of_sets,
    sample_sets,
    set_weights,
    task_gradients,
)
from colonnade.parts.embedding_ring import EmbeddingRing, PartialRing
from colonnade.parts.fused_sets import gradients_over_sets
from colonnade.parts.method_memory import LeftOut
from colonnade.parts.partial_sets import PartialPass, sample_partial_sets, task_rows, task_weights
from colonnade.parts.present_means import mean_of_present

__all__ = ["Laser", "LaserParty"]


@dataclass(frozen=True)
class _Forward:
    """A head's pass over all its sets, until its gradient comes; a factor for every output."""

    batch: Batch
    over_sets: PassOverSets | PartialPass
    rarity: Tensor | None


class Learned(TypedDict):
    """A head's loss, and dL/df_j of the others, in the order in which they came."""

    loss: Loss
    gradient: Derivative


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
    def embed(self, batch: Batch) -> Embedding:
        """Send f_k(x_k)."""
        self._forward_pass = self._own_part = None
        return self.encode(batch)

    @verb
    def descend(self, batch: Batch, gradient: Derivative) -> None:
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
    def outputs(
        self,
        batch: Batch,
        others: Embedding,
        rarity: Weights | None,
        there: RollOfSamples | None,
    ) -> Output:
        """Sample S_k1 .. S_km and send g_k of their averages; ``others`` follow it in the ring.

        ``there`` says which of the others have each of the own samples, if not all have all.
        """
        seed = derive_seed(self._seed, "sets", batch.part, batch.number)
        own = self.encode(batch)
        if there is not None:
            self._check_there(batch, own, others, there)
            tasks = sample_partial_sets(there, seed, others.dtype, own=True)
            with self._drawing():
                partial = PartialPass(self.head, tasks, own, others, there)
            factors = None
            if rarity is not None:
                factors = rarity_of_sets(tasks.sets, rarity)[tasks.valid][:, None]
            self._forward_pass = _Forward(batch, partial, factors)
            return partial.outputs
        sets = sample_sets(len(others) + 1, seed, others.dtype, own=True)
        with self._drawing():
            over_sets = PassOverSets(self.head, sets, own, others)
        factors = None if rarity is None else rarity_of_sets(sets, rarity)[:, None, None]
        self._forward_pass = _Forward(batch, over_sets, factors)
        return over_sets.outputs

    @verb
    def backward(self, batch: Batch, gradient: Derivative) -> Derivative:
        """From dL/dlogits to dL/df_j of the others, in the order in which they came."""
        known = self._forward_pass
        if known is None or known.batch != batch or known.over_sets.outputs.shape != gradient.shape:
            raise ProtocolError(
                f"party '{self.name}' has no outputs of batch {batch.number} that await a "
                f"gradient of shape {tuple(gradient.shape)}"
            )
        self.rests_on(batch)
        return self._pull(known, gradient)

    # Labels shared

    @verb
    def learn(
        self,
        batch: Batch,
        others: Embedding,
        weights: Weights,
        rarity: Weights | None,
        there: RollOfSamples | None,
    ) -> Learned:
        """Both of the above with labels of its own: its loss, and dL/df_j of the others.

        ``weights`` are of every size; with ``there``, of every output.
        """
        outputs = self.outputs(batch, others, rarity, there)
        known = self._forward_pass
        assert known is not None
        task, targets = self.replica.task, self.replica.targets(batch)
        if there is None:
            losses, gradients = task_gradients(outputs[None], targets, weights, task)
            return {"loss": losses[0], "gradient": self._pull(known, gradients[0])}
        samples, _ = task_rows(there.sum(0) + 1)
        own = self.own_places(batch)[samples]
        loss, gradient = task.weighed(outputs, targets[own], weights)
        return {"loss": loss, "gradient": self._pull(known, gradient)}

    # Inference

    @verb
    def predict(self, average: Average) -> Output:
        """g_k of the average over the blocks that are there (Algorithm 2, line 4)."""
        with self.evaluating():
            outputs: Tensor = self.head(average)
        return outputs

    def _drawing(self) -> AbstractContextManager[None]:
        return nullcontext() if self._deterministic else self.own_randomness()

    def _check_there(self, batch: Batch, own: Tensor, others: Tensor, there: Tensor) -> None:
        fits = there.dtype is torch.bool and there.dim() == 2 and there.shape[1] == len(own)
        if not fits or tuple(others.shape) != (int(there.sum()), own.shape[1]):
            raise ProtocolError(
                f"party '{self.name}' has {len(own)} rows of batch {batch.number}; others of shape "
                f"{tuple(others.shape)}, there of shape {tuple(there.shape)} don't fit them"
            )

    def _pull(self, known: _Forward, gradient: Tensor) -> Tensor:
        """Back-propagate through the head; keep the own part, give the others'."""
        if known.rarity is not None:
            gradient = gradient * known.rarity
        own, others, of_parameters = known.over_sets.pull(gradient)
        self._forward_pass = None
        self._own_part = (known.batch, own, of_parameters)
        return others


@dataclass(frozen=True, kw_only=True)
class Laser(Method):
    """A head at every party, trained on sampled sets of the blocks that are there (Algorithm 1)."""

    info = MethodInfo(
        name="laser",
        paper="LASER-VFL (Valdeira et al. 2025)",
        summary="learns from any set of present blocks and predicts from any; a head per party",
        tolerates_missing=True,
        alone=("infer", "predict"),
    )
    party = LaserParty

    labels: Literal["private", "shared"] = "private"
    heads: Literal["all", "label_holder"] = "all"
    weights: SetWeights = "whole"
    normalise_presence: bool = False

    def __post_init__(self) -> None:
        if self.heads == "label_holder" and self.labels == "shared":
            raise ConfigError(
                'labels: "shared" is for heads at the parties; with heads = "label_holder" nobody '
                'else needs them, so leave labels = "private"'
            )

    @property
    def needs(self) -> Needs:
        """Every party's g_k, or the one network of ``heads = "label_holder"``."""
        has_heads = self.heads == "all"
        return Needs(one_width=True, heads=has_heads, fusion=not has_heads, labels=self.labels)

    async def exchange(self, holder: LabelHolder, parties: Parties, batch: Batch) -> None:
        """Algorithm 1, lines 3 to 9."""
        observed = holder.observed(batch, parties.names)
        embeddings = await parties.ask("embed", batch, among=observed.names)
        if not embeddings:
            holder.memory.recall(LeftOut).count += 1
            return
        here = observed.among(embeddings)
        if self.heads == "label_holder":
            gradients = self._fuse_sets(holder, embeddings, batch, here)
            await parties.tell("descend", batch, each(gradients), among=embeddings)
            return
        ring = EmbeddingRing(embeddings) if here.is_complete else PartialRing(embeddings, here)
        if self.labels == "private":
            found = await self._help(holder, parties, batch, ring)
        else:
            found = await self._learn(holder, parties, batch, ring)
        await parties.tell("descend", batch, each(ring.sums(found)), among=embeddings)

    async def _help(
        self, holder: LabelHolder, parties: Parties, batch: Batch, ring: EmbeddingRing | PartialRing
    ) -> dict[str, Tensor]:
        """Lines 5 to 7 with labels at the label holder only: logits up, dL/dlogits down."""
        rarity, there = self._rarity_by_party(holder, batch, ring), _there(ring)
        others = each(ring.others())
        tasks, pairs = ring.shapes()
        outputs = await parties.ask(
            "outputs", batch, others, rarity, there, among=ring.places, **tasks
        )
        if not outputs:
            return {}
        holder.clock.begin()
        if isinstance(ring, PartialRing):
            own = self._judge_tasks(holder, batch, ring, outputs)
        else:
            losses, gradients = task_gradients(
                torch.stack(list(outputs.values())),
                holder.targets(batch),
                set_weights(len(ring), self.weights, own=True),
                holder.task,
            )
            holder.record_loss(losses.mean().item(), ring.embeddings, outputs)
            own = dict(zip(outputs, gradients, strict=True))
        holder.clock.work("fuse")
        return await parties.ask("backward", batch, each(own), among=outputs, **pairs)

    async def _learn(
        self, holder: LabelHolder, parties: Parties, batch: Batch, ring: EmbeddingRing | PartialRing
    ) -> dict[str, Tensor]:
        """Lines 5 to 7 as they stand: every party has the labels."""
        rarity, there = self._rarity_by_party(holder, batch, ring), _there(ring)
        weights: Any = set_weights(len(ring), self.weights, own=True)
        by_party: dict[str, Tensor] = {}
        if isinstance(ring, PartialRing):
            by_party = {name: self._task_weights(ring, name) for name in ring.places}
            weights = each(by_party)
        others = each(ring.others())
        _, pairs = ring.shapes()
        answers = await parties.ask(
            "learn", batch, others, weights, rarity, there, among=ring.places, **pairs
        )
        if not answers:
            return {}
        losses = {name: item["loss"] for name, item in answers.items()}
        if by_party:
            totals = [by_party[name].sum() for name in losses]
            holder.record_losses(losses.values(), totals, losses, ring.embeddings)
        else:
            mean = torch.stack(list(losses.values())).mean()
            holder.record_loss(mean.item(), ring.embeddings, losses)
        return {name: item["gradient"] for name, item in answers.items()}

    def _judge_tasks(
        self,
        holder: LabelHolder,
        batch: Batch,
        ring: PartialRing,
        outputs: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """dL/dlogits of every head, of the tasks of the samples that its party has."""
        targets = holder.targets(batch)
        losses, totals, gradients = [], [], {}
        for name, found in outputs.items():
            rows = ring.here.rows[name]
            samples, _ = task_rows(ring.here.counts[rows])
            weights = self._task_weights(ring, name)
            loss, gradients[name] = holder.task.weighed(found, targets[rows[samples]], weights)
            losses.append(loss)
            totals.append(weights.sum())
        holder.record_losses(losses, totals, outputs, ring.embeddings)
        return gradients

    def _task_weights(self, ring: PartialRing, name: str) -> Tensor:
        """What each of a party's tasks weighs in the mean over the whole batch."""
        here = ring.here
        weights = task_weights(here.counts[here.rows[name]], self.weights, own=True)
        return weights.to(ring.embeddings[name].dtype) / here.num_samples

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

    def _rarity_by_party(
        self, holder: LabelHolder, batch: Batch, ring: EmbeddingRing | PartialRing
    ) -> Each | None:
        """The same, as each party sees its ring."""
        rarity = self._rarity(holder, batch, ring.places)
        return None if rarity is None else each(ring.turned(rarity))

    def _fuse_sets(
        self, holder: LabelHolder, embeddings: Mapping[str, Tensor], batch: Batch, here: Observed
    ) -> dict[str, Tensor]:
        """One network for all sets, own block or not: a set of every size, any members."""
        holder.begin_local_steps()
        rarity = self._rarity(holder, batch, embeddings)
        gradients = gradients_over_sets(holder, embeddings, batch, here, self.weights, rarity)
        holder.step()
        return gradients

    async def predict(
        self, holder: LabelHolder, parties: Parties, batch: Batch, *, each: bool
    ) -> Answer:
        """Algorithm 2: every party that has a sample predicts from all its blocks that are there.

        The federation's one answer is the mean of the raw outputs of all heads that predict.
        """
        observed = holder.observed(batch, parties.names)
        embeddings = await parties.ask("infer", batch, among=observed.names)
        used, here = tuple(embeddings), observed.among(embeddings)
        average = mean_of_present(embeddings, here)
        if self.heads == "label_holder":
            return Answer(outputs=holder.infer({used[0]: average}), used=used)
        own: Any = average
        if not here.is_complete:
            own = Each({name: average[here.rows[name]] for name in used})
        answers = await parties.ask("predict", own, among=used)
        outputs = mean_of_present(answers, here.among(answers))
        return Answer(outputs=outputs, each=answers, used=used)

    def findings(self, holder: LabelHolder) -> Mapping[str, Any]:
        """How many exchanges were left out because nobody answered."""
        return {"num_left_out": holder.memory.recall(LeftOut).count}


def _there(ring: EmbeddingRing | PartialRing) -> Each | None:
    return each(ring.there()) if isinstance(ring, PartialRing) else None
