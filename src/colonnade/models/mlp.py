"""Fully connected encoders (a multi-layer perceptron, one linear layer) and their layers.

``fully_connected`` also makes the dense layers of fusions, heads and image encoders.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

from torch import nn

from colonnade.models.registry import (
    EncoderSpec,
    check_choice,
    check_flag,
    check_rate,
    check_shape,
    check_sizes,
    register_encoder,
)

__all__ = [
    "Activation",
    "LinearSpec",
    "MLPSpec",
    "activation_layer",
    "check_activation",
    "fully_connected",
]

Activation = Literal["relu", "tanh", "gelu", "identity"]

_LAYERS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "identity": nn.Identity,
}

_GIVE_COLUMNS = "give the party a block with at least one column"


def activation_layer(activation: Activation) -> nn.Module:
    """Make the activation of this name."""
    return _LAYERS[activation]()


def check_activation(value: object) -> None:
    """Require the name of a known activation."""
    check_choice("activation", value, get_args(Activation))


def fully_connected(
    num_inputs: int,
    hidden: tuple[int, ...],
    num_outputs: int,
    *,
    activation: Activation,
    dropout: float = 0.0,
    activate_output: bool = False,
    flatten: bool = False,
) -> nn.Sequential:
    """Stack linear layers: activation and dropout after each hidden one, none after the output.

    Layers are named, not numbered, so that switching dropout on or off leaves the names of the
    weights in a checkpoint as they were.
    """
    layers = nn.Sequential()
    if flatten:
        layers.add_module("flatten", nn.Flatten())
    width = num_inputs
    for depth, size in enumerate(hidden):
        layers.add_module(f"hidden{depth}", nn.Linear(width, size))
        layers.add_module(f"activation{depth}", activation_layer(activation))
        if dropout > 0:
            layers.add_module(f"dropout{depth}", nn.Dropout(dropout))
        width = size
    layers.add_module("output", nn.Linear(width, num_outputs))
    if activate_output:
        layers.add_module("output_activation", activation_layer(activation))
    return layers


@register_encoder
@final
@dataclass(frozen=True, kw_only=True)
class MLPSpec(EncoderSpec):
    """A multi-layer perceptron; samples with several axes are flattened first.

    Args:
        hidden: The widths of the hidden layers.
        activation: The activation after each hidden layer.
        activate_output: Whether the embedding goes through the activation as well.
        dropout: The dropout rate after each hidden layer.
    """

    kind: ClassVar[str] = "mlp"

    hidden: tuple[int, ...] = (64,)
    activation: Activation = "relu"
    activate_output: bool = True
    dropout: float = 0.0

    def check(self) -> None:
        check_sizes("hidden", self.hidden)
        check_activation(self.activation)
        check_flag("activate_output", self.activate_output)
        check_rate("dropout", self.dropout)

    @property
    def is_linear(self) -> bool:
        """Whether it has no hidden layer, or one that is only multiplied."""
        return not self.hidden or self.activation == "identity"

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        check_shape(self.kind, input_shape, None, _GIVE_COLUMNS)
        return fully_connected(
            math.prod(input_shape),
            self.hidden,
            self.embedding,
            activation=self.activation,
            dropout=self.dropout,
            activate_output=self.activate_output,
            flatten=len(input_shape) > 1,
        )


@register_encoder
@final
@dataclass(frozen=True, kw_only=True)
class LinearSpec(EncoderSpec):
    """One linear layer, no activation; samples with several axes are flattened first."""

    kind: ClassVar[str] = "linear"

    def check(self) -> None:
        """Nothing to check: the embedding size is the only field."""

    @property
    def is_linear(self) -> bool:
        """It is."""
        return True

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        check_shape(self.kind, input_shape, None, _GIVE_COLUMNS)
        return fully_connected(
            math.prod(input_shape),
            (),
            self.embedding,
            activation="identity",
            flatten=len(input_shape) > 1,
        )
