"""LabelHolder: the labels, the fusion model, and what it may learn from embeddings."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.errors import Diverged, MissingBlock
from colonnade.core.evaluation_mode import Evaluation
from colonnade.core.fabric import Clock, RealClock
from colonnade.core.local_optimizers import LocalOptimizer
from colonnade.core.memory import Memory
from colonnade.core.messages import Batch
from colonnade.core.optimizers import OptimizerSpec, optimizer_state, restore_optimizer
from colonnade.core.presence import Observed, Presence
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

    Args:
        name: Its name in the federation.
        task: What is predicted, and the loss.
        fusion: Its network from embeddings to outputs.
        optimizer: The settings of the fusion model's optimizer.
        parts: Labels, by part.
        presence: Who has which sample, of the parts that are not complete.
        seed: The run's seed; the label holder derives its own stream from it.
        deterministic: Whether the fusion model draws nothing.
        clock: Its clock; the machine's if not given.
        left: The parties that were trained with and left for good.
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
        self.left = left
        self.task = task
        self.fusion = fusion
        self._evaluating = Evaluation(fusion)
        self._loss = task.loss_function
        self._parameters = list(fusion.parameters())
        self.optimizer = optimizer.build(self._parameters)
        self._optimizing = optimizer
        self.parts = dict(parts)
        # Only of parts with samples that some party does not have.
        self.presence = dict(presence or {})
        self.clock: Clock = clock or RealClock()
        self.exchange = 0
        self.last_loss = math.nan
        self.memory = Memory()
        # For what a method draws at the label holder.
        self.seed = derive_seed(seed, "label holder")
        self._deterministic = deterministic
        self._num_fusions = 0

    def over(self, parts: Mapping[str, LabelPart], presence: Mapping[str, Presence]) -> LabelHolder:
        """The same label holder over other samples: for one prediction.

        Args:
            parts: Labels by part, where they are known.
            presence: Who has which sample, of the parts that are not complete.

        Returns:
            A label holder with the same weights, and these parts alone.
        """
        view = copy.copy(self)
        view.parts, view.presence = dict(parts), dict(presence)
        return view

    def targets(self, batch: Batch) -> Tensor:
        """The encoded labels of a batch.

        Args:
            batch: The samples.

        Returns:
            A row or a number per sample, as the loss expects them.
        """
        part = self.parts[batch.part]
        return part.targets[part.plan.positions(batch.number)]

    def trained_with(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Everybody who was trained together.

        Args:
            names: The parties that are here.

        Returns:
            These and those who left, in party order.
        """
        return tuple(sorted((*names, *self.left)))

    def observed(self, batch: Batch, names: tuple[str, ...]) -> Observed:
        """Which samples of a batch each party has.

        Args:
            batch: The samples.
            names: The parties in question, in party order.

        Returns:
            The parties that have some, and which.
        """
        known = self.presence.get(batch.part)
        if known is not None:
            return known.observed(batch.number, names)
        part = self.parts.get(batch.part)
        num_samples = 0 if part is None else part.plan.num_positions(batch.number)
        return Observed(names=names, num_samples=num_samples)

    def learn(
        self, embeddings: Mapping[str, Tensor], batch: Batch, places: Tensor | None = None
    ) -> dict[str, Tensor]:
        """One update of the fusion model from one batch.

        Args:
            embeddings: By party.
            batch: The samples.
            places: The places in the batch that the embeddings are of, if not of all; each counts
                as much as a sample of the whole batch.

        Returns:
            dL/dh_k by party; the loss is the one before the update.
        """
        self.begin_local_steps()
        gradients = self.gradients(embeddings, batch, places=places)
        self.step()
        return gradients

    def gradients(
        self, embeddings: Mapping[str, Tensor], *batches: Batch, places: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Loss and gradients; the update of the fusion model is left for ``step``.

        Args:
            embeddings: By party; of several batches, one below the other.
            batches: The samples.
            places: As in ``learn``.

        Returns:
            dL/dh_k by party.
        """
        self.clock.begin()
        leaves = {name: item.detach().requires_grad_() for name, item in embeddings.items()}
        targets = [self.targets(batch) for batch in batches]
        joined = targets[0] if len(targets) == 1 else torch.cat(targets)
        if places is None:
            loss = self._loss(self.fuse(leaves), joined)
            self.record_loss(loss.item(), embeddings)
            return self.pull(loss, leaves)
        losses = self.task.losses(self.fuse(leaves), joined[places])
        self.record_loss(losses.mean().item(), embeddings)
        return self.pull((losses * (1 / len(joined))).sum(), leaves)

    def record_loss(
        self,
        loss: float,
        embeddings: Mapping[str, Tensor],
        predictions: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Remember an exchange's loss.

        Args:
            loss: Its value.
            embeddings: By party, the embeddings that it was computed from.
            predictions: By party, the outputs that it was computed from, if parties sent any.

        Raises:
            Diverged: If the loss is not finite; the error names the party whose values began it.
        """
        self.last_loss = loss
        if math.isfinite(loss):
            return
        wild = any(not torch.isfinite(item).all() for item in embeddings.values())
        if wild or predictions is None:
            raise self._diverged(embeddings)
        raise self._diverged(predictions, "a prediction")

    def pull(self, loss: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Back-propagate to the fusion model's weights, for ``step``, and to the embeddings.

        Args:
            loss: Made of what ``fuse`` gave for the leaves.
            leaves: Embeddings that require gradients, by party.

        Returns:
            dL/dh_k by party.
        """
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {}
        for name, leaf in leaves.items():
            # A fusion model that ignores an embedding gives it a zero gradient, not none.
            gradients[name] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        return gradients

    def judge(self, predictions: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Compute the loss of each party's own prediction; ``last_loss`` is their mean.

        A sample counts 1 / (samples of the batch) in the loss of everybody who has it.

        Args:
            predictions: Raw outputs by party, of the samples that it has.
            batch: The samples.

        Returns:
            dL_k/dR_k by party.

        Raises:
            MissingBlock: If there is no prediction.
            Diverged: If a loss is not finite.
        """
        if not predictions:
            raise MissingBlock(
                f"exchange {self.exchange + 1}: nobody's prediction came; raise patience.timeout"
            )
        self.clock.begin()
        here = self.observed(batch, tuple(predictions))
        if not here.is_complete:
            return self._judge_own(predictions, batch, here)
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

    def _judge_own(
        self, predictions: Mapping[str, Tensor], batch: Batch, here: Observed
    ) -> dict[str, Tensor]:
        """The same where not everybody has every sample."""
        targets, gradients = self.targets(batch), {}
        losses, totals = [], []
        for name, outputs in predictions.items():
            weights = outputs.new_ones(len(outputs)) / len(targets)
            loss, gradients[name] = self.task.weighed(outputs, targets[here.rows[name]], weights)
            losses.append(loss)
            totals.append(weights.sum())
        self.record_losses(losses, totals, predictions)
        self.clock.work("fuse")
        return gradients

    def record_losses(
        self,
        losses: Iterable[Tensor],
        totals: Iterable[Tensor],
        predictions: Mapping[str, Tensor],
        embeddings: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Remember an exchange's loss where predictors answer for different samples.

        Args:
            losses: Every predictor's weighted mean loss.
            totals: The sums of their weights.
            predictions: As in ``record_loss``, which raises Diverged; so ``embeddings``.
        """
        counts = torch.stack(list(totals))
        mean = (torch.stack(list(losses)) * counts).sum() / counts.sum()
        self.record_loss(mean.item(), embeddings or {}, predictions)

    def step(self) -> None:
        """Update the fusion model along the gradients computed last."""
        own = self._optimizing
        own.step(self.optimizer, self.exchange) if not own.is_plain else self.optimizer.step()
        self.clock.work("fuse")

    def begin_local_steps(self) -> None:
        """Tell an optimizer with state per exchange that one begins (Flex-VFL, section IV)."""
        if isinstance(self.optimizer, LocalOptimizer):
            self.optimizer.begin_exchange()

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the fusion model's learning rate by a ``factor``."""
        for group in self.optimizer.param_groups:
            group["lr"] *= factor

    def infer(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """The fusion model's outputs for prediction: evaluation mode, no graph.

        Args:
            embeddings: By party.

        Returns:
            Raw outputs, a row per sample.
        """
        with self._evaluating():
            outputs: Tensor = self.fusion(embeddings)
        return outputs

    def refuse_non_finite(self) -> None:
        """Check the fusion model's weights.

        Raises:
            Diverged: If they are no longer finite.
        """
        if not all(torch.isfinite(parameter).all() for parameter in self._parameters):
            raise Diverged(
                f"exchange {self.exchange + 1}: the fusion model's weights at '{self.name}' are no "
                "longer finite; lower its learning rate",
                exchange=self.exchange + 1,
                party=self.name,
            )

    def state(self) -> dict[str, Any]:
        """Everything that training changes.

        Returns:
            Plain values and tensors, for a checkpoint.
        """
        return {
            "fusion": self.fusion.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "memory": self.memory.state(),
            "num_fusions": self._num_fusions,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state`` gave."""
        self.fusion.load_state_dict(state["fusion"])
        restore_optimizer(self.optimizer, state["optimizer"])
        self.memory.restore(state["memory"])
        self._num_fusions = state["num_fusions"]

    def _diverged(self, answers: Mapping[str, Tensor], what: str = "an embedding") -> Diverged:
        for name, item in answers.items():
            if not torch.isfinite(item).all():
                return Diverged(
                    f"exchange {self.exchange + 1}: party '{name}' sent {what} with values that "
                    f"are not finite (loss {self.last_loss}); lower its learning rate, or check "
                    "its data",
                    exchange=self.exchange + 1,
                    party=name,
                )
        largest = {name: float(item.abs().max()) for name, item in answers.items() if item.numel()}
        who = max(largest, key=lambda name: largest[name], default=self.name)
        return Diverged(
            f"exchange {self.exchange + 1}: the loss is {self.last_loss} at label holder "
            f"'{self.name}' though everything that came is finite (the largest value, "
            f"{largest.get(who, 0.0):g}, is of '{who}'); lower the learning rate of "
            f"{'the fusion model' if what == 'an embedding' else 'the parties'}",
            exchange=self.exchange + 1,
            party=self.name,
        )

    def fuse(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Fuse in training mode; dropout and the like draw from the label holder's own stream.

        Args:
            embeddings: By party.

        Returns:
            Raw outputs with their graph.
        """
        self._num_fusions += 1
        if self._deterministic:
            outputs: Tensor = self.fusion(embeddings)
            return outputs
        with drawing_from(derive_seed(self.seed, "fuse", self._num_fusions)):
            outputs = self.fusion(embeddings)
        return outputs
