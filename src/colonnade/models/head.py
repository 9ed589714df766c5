"""Heads: the decision networks of parties that predict by themselves."""

from dataclasses import dataclass
from typing import final

from torch import nn

from colonnade.models.mlp import Activation, check_activation, fully_connected
from colonnade.models.registry import check_count, check_rate, check_sizes

__all__ = ["HeadSpec"]


@final
@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """Fully connected layers from an embedding to raw outputs; linear if nothing is hidden."""

    hidden: tuple[int, ...] = (32,)
    activation: Activation = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes("hidden", self.hidden)
        check_activation(self.activation)
        check_rate("dropout", self.dropout)

    def build(self, embedding: int, num_outputs: int) -> nn.Module:
        """Make the head for embeddings of this size."""
        check_count("embedding", embedding)
        check_count("num_outputs", num_outputs)
        return fully_connected(
            embedding,
            self.hidden,
            num_outputs,
            activation=self.activation,
            dropout=self.dropout,
        )
