"""Small convolutional encoders for images: the CNN and the LeNet of the EASTER paper.

The paper gives the number of layers of each kind (section 5.1.2). Widths, kernel sizes and strides
are ours; kernels are padded so that halves, quadrants and narrow strips of an image pass through.
Residual networks are in ``resnet``.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, final

from torch import nn

from colonnade.core.errors import ConfigError
from colonnade.models.mlp import Activation, activation_layer, check_activation, fully_connected
from colonnade.models.registry import (
    EncoderSpec,
    check_count,
    check_flag,
    check_rate,
    check_shape,
    check_sizes,
    register_encoder,
)

__all__ = ["CNNSpec", "LeNetSpec", "image_shape"]

_KERNEL = 5
_SAME = _KERNEL // 2  # padding that keeps height and width


def image_shape(kind: str, input_shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """Give (channels, height, width), or raise ConfigError if the shape is no image."""
    check_shape(
        kind,
        input_shape,
        ("channels", "height", "width"),
        "give the party an image block, or use kind = 'mlp', which takes any shape",
    )
    channels, height, width = input_shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"encoder kind = {kind!r}: expected an image at least {smallest} pixels high and wide, "
            f"got {height} x {width}; cut the image into larger blocks, or use kind = 'mlp'"
        )
    return channels, height, width


@register_encoder
@final
@dataclass(frozen=True, kw_only=True)
class CNNSpec(EncoderSpec):
    """Two convolutions, each followed by max-pooling, then two fully connected layers.

    Args:
        channels: The channels of the two convolutions.
        hidden: The width of the first fully connected layer.
        activation: The activation after each layer but the last.
        activate_output: Whether the embedding goes through the activation as well.
        dropout: The dropout rate between the fully connected layers.
    """

    kind: ClassVar[str] = "cnn"

    channels: tuple[int, ...] = (32, 64)
    hidden: int = 128
    activation: Activation = "relu"
    activate_output: bool = False
    dropout: float = 0.0

    def check(self) -> None:
        check_sizes("channels", self.channels, length=2)
        check_count("hidden", self.hidden)
        check_activation(self.activation)
        check_flag("activate_output", self.activate_output)
        check_rate("dropout", self.dropout)

    @property
    def is_linear(self) -> bool:
        """Whether convolutions follow each other without an activation."""
        return self.activation == "identity"

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        channels, height, width = image_shape(self.kind, input_shape, smallest=4)
        first, second = self.channels
        layers = _convolutions(
            (channels, first, second), self.activation, pooled=("pool0", "pool1")
        )
        num_features = second * (height // 2 // 2) * (width // 2 // 2)
        layers.add_module("dense", _dense(self, num_features, (self.hidden,)))
        return layers


@register_encoder
@final
@dataclass(frozen=True, kw_only=True)
class LeNetSpec(EncoderSpec):
    """Three convolutions, one pooling layer, three fully connected layers (LeNet-5's widths).

    LeNet-5 shrinks the image by unpadded kernels and two poolings. With one pooling layer, and
    blocks too narrow for unpadded kernels, the second and third convolutions shrink it by stride.

    Args:
        channels: The channels of the three convolutions.
        hidden: The widths of the first two fully connected layers.
        activation: The activation after each layer but the last.
        activate_output: Whether the embedding goes through the activation as well.
        dropout: The dropout rate after each hidden fully connected layer.
    """

    kind: ClassVar[str] = "lenet"

    channels: tuple[int, ...] = (6, 16, 120)
    hidden: tuple[int, ...] = (120, 84)
    activation: Activation = "relu"
    activate_output: bool = False
    dropout: float = 0.0

    def check(self) -> None:
        check_sizes("channels", self.channels, length=3)
        check_sizes("hidden", self.hidden, length=2)
        check_activation(self.activation)
        check_flag("activate_output", self.activate_output)
        check_rate("dropout", self.dropout)

    @property
    def is_linear(self) -> bool:
        """Whether convolutions follow each other without an activation."""
        return self.activation == "identity"

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        channels, height, width = image_shape(self.kind, input_shape, smallest=2)
        layers = _convolutions((channels, *self.channels), self.activation, pooled=("pool",))
        num_features = self.channels[-1] * _after_lenet(height) * _after_lenet(width)
        layers.add_module("dense", _dense(self, num_features, self.hidden))
        return layers


def _convolutions(
    channels: tuple[int, ...], activation: Activation, *, pooled: tuple[str, ...]
) -> nn.Sequential:
    """Convolutions from each number of channels to the next, each halving height and width.

    The first ones are followed by a pooling layer of the given name, the others have a stride.
    """
    layers = nn.Sequential()
    for place, (before, after) in enumerate(pairwise(channels)):
        stride = 1 if place < len(pooled) else 2
        convolution = nn.Conv2d(before, after, _KERNEL, stride=stride, padding=_SAME)
        layers.add_module(f"conv{place}", convolution)
        layers.add_module(f"conv{place}_activation", activation_layer(activation))
        if place < len(pooled):
            layers.add_module(pooled[place], nn.MaxPool2d(2))
    return layers


def _dense(spec: CNNSpec | LeNetSpec, num_features: int, hidden: tuple[int, ...]) -> nn.Module:
    return fully_connected(
        num_features,
        hidden,
        spec.embedding,
        activation=spec.activation,
        dropout=spec.dropout,
        activate_output=spec.activate_output,
        flatten=True,
    )


def _after_lenet(size: int) -> int:
    """Count the pixels left of one axis: the pooling rounds down, each stride rounds up."""
    pooled = size // 2
    strided = (pooled + 1) // 2
    return (strided + 1) // 2
