"""LabelHolder: the labels, the fusion model, and what it may learn from embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.block_sets import rarity_of_sets, sample_sets, weighted_losses
from colonnade.core.errors import Diverged, MissingBlock
from colonnade.core.fabric import Clock, RealClock
from colonnade.core.local_optimizers import LocalOptimizer
from colonnade.core.messages import Batch
from colonnade.core.optimizers import OptimizerSpec, optimizer_state, restore_optimizer
from colonnade.core.presence import Presence
from colonnade.core.seeds import derive_seed, drawing_from
from colonnade.core.task import Task

__all__ = ["LabelHolder", "LabelPart"]


@dataclass(frozen=True, kw_only=True)
class LabelPart:
    """The labels of one part of the data: as they are, and as the loss wants them."""

    values: np.ndarray[Any, Any]
    targets: Tensor
    plan: BatchPlan


class LabelHolder:
    """Holds labels and fusion model; sees of the parties only what crossed a link.

    A block of its own, where it has one, is a party at its side: same verbs, a link of no length.
    """

    def __init__(
        self,
        *,
        name: str,
        task: Task,
        fusion: nn.Module,
        optimizer: OptimizerSpec,
        parts: Mapping[str, LabelPart],
        presence: Mapping[str, Presence] | None = None,
        seed: int = 0,
        deterministic: bool = False,
        clock: Clock | None = None,
        left: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        # Who was trained with and left for good.
        self.left = left
        self.task = task
        self.fusion = fusion
        self._parameters = list(fusion.parameters())
        self.optimizer = optimizer.build(self._parameters)
        self.parts = dict(parts)
        # Only of parts with samples that some party does not have.
        self.presence = dict(presence or {})
        self.clock: Clock = clock or RealClock()
        self.exchange = 0
        self.last_loss = math.nan
        # What a method remembers between exchanges (tables of embeddings, delay counters, ...);
        # tensors and plain values only, so that it is part of every checkpoint.
        self.memory: dict[str, Any] = {}
        # For what a method draws at the label holder.
        self.seed = derive_seed(seed, "label holder")
        self._deterministic = deterministic
        self._num_fusions = 0

    def targets(self, batch: Batch) -> Tensor:
        """The encoded labels of a batch."""
        part = self.parts[batch.part]
        return part.targets[part.plan.positions(batch.number)]

    def trained_with(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """These parties and those who left, in party order."""
        return tuple(sorted((*names, *self.left)))

    def observed(self, batch: Batch, names: tuple[str, ...]) -> tuple[str, ...]:
        """Which of these parties have the samples of a batch."""
        known = self.presence.get(batch.part)
        if known is None:
            return names
        here = known.observed(batch.number)
        return tuple(name for name in names if name in here)

    def learn(self, embeddings: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Loss of one batch, one update of the fusion model, and dL/dh_k for every embedding.

        The gradients belong to the loss before the update.
        """
        self.begin_local_steps()
        gradients = self.gradients(embeddings, batch)
        self.step()
        return gradients

    def learn_batches(
        self, embeddings: Sequence[Mapping[str, Tensor]], batches: Sequence[Batch]
    ) -> list[dict[str, Tensor]]:
        """One update over several batches together; dL/dh_k of each batch's own mean loss."""
        if len(batches) == 1:
            return [self.learn(embeddings[0], batches[0])]
        sizes = [len(next(iter(item.values()))) for item in embeddings]
        joined = {name: torch.cat([item[name] for item in embeddings]) for name in embeddings[0]}
        self.begin_local_steps()
        gradients = self.gradients(joined, *batches)
        self.step()
        # The joint loss averages over all the samples; each batch's own, over its own only.
        split = {name: torch.split(item, sizes) for name, item in gradients.items()}
        return [
            {name: split[name][at] * (sum(sizes) / size) for name in split}
            for at, size in enumerate(sizes)
        ]

    def gradients(self, embeddings: Mapping[str, Tensor], *batches: Batch) -> dict[str, Tensor]:
        """Loss and dL/dh_k; the update of the fusion model is left for ``step``."""
        self.clock.begin()
        leaves = {name: item.detach().requires_grad_() for name, item in embeddings.items()}
        targets = [self.targets(batch) for batch in batches]
        joined = targets[0] if len(targets) == 1 else torch.cat(targets)
        loss = self.task.loss(self._fuse(leaves), joined)
        self.record_loss(loss.item(), embeddings)
        return self._pulled(loss, leaves)

    def gradients_over_sets(
        self,
        embeddings: Mapping[str, Tensor],
        batch: Batch,
        weights: Tensor,
        rarity: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Loss over one sampled set of blocks of every size, and dL/dh_k.

        Needs a fusion model that averages; ``weights`` has one number per size, ``rarity`` a
        factor per embedding.
        """
        self.clock.begin()
        leaves = {name: item.detach().requires_grad_() for name, item in embeddings.items()}
        blocks = torch.stack(list(leaves.values()))
        seed = derive_seed(self.seed, "sets", batch.part, batch.number)
        sets = sample_sets(len(blocks), seed, blocks.dtype, own=False)
        averages = (sets @ blocks.flatten(1)).view(len(sets) * blocks.shape[1], -1)
        # The average is taken here; one embedding alone goes through as it is.
        outputs = self._fuse({next(iter(leaves)): averages})
        targets = self.targets(batch)
        repeated = targets.repeat(len(sets), *(1 for _ in targets.shape[1:]))
        losses = self.task.losses(outputs, repeated).view(len(sets), -1)
        weights = weights.to(losses.dtype)
        plain = weighted_losses(losses.detach(), weights / weights.sum())
        self.record_loss(plain.item(), embeddings)
        if rarity is not None:
            weights = weights * rarity_of_sets(sets, rarity)
        return self._pulled(weighted_losses(losses, weights), leaves)

    def record_loss(
        self,
        loss: float,
        embeddings: Mapping[str, Tensor],
        predictions: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Remember an exchange's loss; raise Diverged, naming who began it, if it is no number."""
        self.last_loss = loss
        if math.isfinite(loss):
            return
        wild = any(not torch.isfinite(item).all() for item in embeddings.values())
        if wild or predictions is None:
            raise self._diverged(embeddings)
        raise self._diverged(predictions, "a prediction")

    def _pulled(self, loss: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Back-propagate to the fusion model's weights and to the embeddings."""
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {}
        for name, leaf in leaves.items():
            # A fusion model that ignores an embedding gives it a zero gradient, not none.
            gradients[name] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        return gradients

    def judge(self, predictions: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """The loss of each party's own prediction, and dL_k/dR_k for every one of them.

        ``last_loss`` is the mean of the losses.
        """
        if not predictions:
            raise MissingBlock(
                f"exchange {self.exchange}: nobody's prediction came; raise patience.timeout"
            )
        self.clock.begin()
        leaves = {name: item.detach().requires_grad_() for name, item in predictions.items()}
        targets = self.targets(batch)
        losses = torch.stack([self.task.loss(leaf, targets) for leaf in leaves.values()])
        self.last_loss = losses.mean().item()
        if not math.isfinite(self.last_loss):
            raise self._diverged(predictions, "a prediction")
        # No loss depends on another's prediction: the gradient of the sum has each one's own.
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
        self.clock.work("fuse")
        return dict(zip(leaves, gradients, strict=True))

    def step(self) -> None:
        """Update the fusion model along the gradients computed last."""
        self.optimizer.step()
        self.clock.work("fuse")

    def begin_local_steps(self) -> None:
        """Tell an optimizer that minds exchanges that one begins (Flex-VFL, section IV)."""
        if isinstance(self.optimizer, LocalOptimizer):
            self.optimizer.begin_exchange()

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the fusion model's learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] *= factor

    def infer(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """The fusion model's outputs for prediction: evaluation mode, no graph."""
        self.fusion.eval()
        try:
            with torch.no_grad():
                outputs: Tensor = self.fusion(embeddings)
        finally:
            self.fusion.train()
        return outputs

    def refuse_non_finite(self) -> None:
        """Raise Diverged if the fusion model's weights are no longer finite."""
        if not all(torch.isfinite(parameter).all() for parameter in self._parameters):
            raise Diverged(
                f"exchange {self.exchange}: the fusion model's weights at '{self.name}' are no "
                "longer finite; lower its learning rate",
                exchange=self.exchange,
                party=self.name,
            )

    def state(self) -> dict[str, Any]:
        """Everything that training changes."""
        return {
            "fusion": self.fusion.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "memory": self.memory,
            "num_fusions": self._num_fusions,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""
        self.fusion.load_state_dict(state["fusion"])
        restore_optimizer(self.optimizer, state["optimizer"])
        self.memory = dict(state["memory"])
        self._num_fusions = state["num_fusions"]

    def _diverged(self, answers: Mapping[str, Tensor], what: str = "an embedding") -> Diverged:
        for name, item in answers.items():
            if not torch.isfinite(item).all():
                return Diverged(
                    f"exchange {self.exchange}: party '{name}' sent {what} with values that "
                    f"are not finite (loss {self.last_loss}); lower its learning rate, or check "
                    "its data",
                    exchange=self.exchange,
                    party=name,
                )
        return Diverged(
            f"exchange {self.exchange}: the loss is {self.last_loss} at label holder "
            f"'{self.name}' though everything that came is finite; lower the learning rate of "
            f"{'the fusion model' if what == 'an embedding' else 'the parties'}",
            exchange=self.exchange,
            party=self.name,
        )

    def _fuse(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Fuse in training mode; dropout and the like draw from the label holder's own stream."""
        self._num_fusions += 1
        if self._deterministic:
            outputs: Tensor = self.fusion(embeddings)
            return outputs
        with drawing_from(derive_seed(self.seed, "fuse", self._num_fusions)):
            outputs = self.fusion(embeddings)
        return outputs
