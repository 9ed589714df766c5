"""The head: a party's own network from one embedding to the outputs."""

from dataclasses import dataclass
from typing import final

from torch import nn

from colonnade.models.mlp import Activation, check_activation, fully_connected
from colonnade.models.registry import check_count, check_rate, check_sizes

__all__ = ["HeadSpec"]


@final
@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """The settings of a head: a multi-layer perceptron, or without hidden layers a linear one.

    Args:
        hidden: The widths of the hidden layers.
        activation: The activation after each hidden layer.
        dropout: The dropout rate after each hidden layer.

    Raises:
        ConfigError: A setting has a value that it can't have.
    """

    hidden: tuple[int, ...] = ()
    activation: Activation = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes("hidden", self.hidden)
        check_activation(self.activation)
        check_rate("dropout", self.dropout)

    def build(self, embedding: int, num_outputs: int) -> nn.Module:
        """Make the head.

        Args:
            embedding: The width of the embedding.
            num_outputs: The number of logits.

        Returns:
            A module from (batch, embedding) to (batch, num_outputs).

        Raises:
            ConfigError: ``num_outputs`` is not positive.
        """
        check_count("num_outputs", num_outputs)
        return fully_connected(
            embedding, self.hidden, num_outputs, activation=self.activation, dropout=self.dropout
        )
