"""Heads: a party's own network from an embedding to the outputs."""

from dataclasses import dataclass
from typing import final

from torch import nn

from colonnade.models.mlp import Activation, check_activation, fully_connected
from colonnade.models.registry import check_count, check_rate, check_sizes

__all__ = ["HeadSpec"]


@final
@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """A multi-layer perceptron over one embedding; without hidden layers it is linear."""

    hidden: tuple[int, ...] = ()
    activation: Activation = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes("hidden", self.hidden)
        check_activation(self.activation)
        check_rate("dropout", self.dropout)

    def build(self, embedding: int, num_outputs: int) -> nn.Module:
        """Make the network; its outputs are raw logits."""
        check_count("num_outputs", num_outputs)
        return fully_connected(
            embedding, self.hidden, num_outputs, activation=self.activation, dropout=self.dropout
        )
