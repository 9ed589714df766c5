"""Replica: labels and a copy of the fusion model, at a party that labels are shared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from colonnade.core.batches import BatchPlan
from colonnade.core.messages import Batch
from colonnade.core.task import Task

__all__ = ["Replica"]


@dataclass(frozen=True, kw_only=True)
class Replica:
    """The fusion model and labels of a party that may compute the loss by itself."""

    fusion: nn.Module
    task: Task
    parts: Mapping[str, tuple[Tensor, BatchPlan]]

    def loss(self, embeddings: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The loss of a batch under the fusion model as last received."""
        return self.task.loss(self.fusion(embeddings), self.targets(batch))

    def targets(self, batch: Batch) -> Tensor:
        """The encoded labels of a batch."""
        targets, plan = self.parts[batch.part]
        return targets[plan.positions(batch.number)]
