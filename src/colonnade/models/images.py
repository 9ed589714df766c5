"""Small convolutional encoders for image blocks: the CNN and the LeNet of the EASTER paper.

The paper gives the number of layers of each kind (section 5.1.2) and neither widths, kernel sizes
nor strides. Those are ours: padded so that any cut of an image (halves, quadrants, narrow strips)
passes through.
"""

from dataclasses import dataclass
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
    """Return (channels, height, width), or say why this shape is no image block for this kind."""
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
    """Two convolutions, each halved by max-pooling, then two fully connected layers."""

    kind: ClassVar[str] = "cnn"

    channels: tuple[int, ...] = (32, 64)
    hidden: int = 128
    activation: Activation = "relu"
    activate_output: bool = False
    dropout: float = 0.0  # between the two fully connected layers

    def check(self) -> None:
        check_sizes("channels", self.channels, length=2)
        check_count("hidden", self.hidden)
        check_activation(self.activation)
        check_flag("activate_output", self.activate_output)
        check_rate("dropout", self.dropout)

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        channels, height, width = image_shape(self.kind, input_shape, smallest=4)
        first, second = self.channels
        layers = nn.Sequential()
        layers.add_module("conv0", nn.Conv2d(channels, first, _KERNEL, padding=_SAME))
        layers.add_module("conv0_activation", activation_layer(self.activation))
        layers.add_module("pool0", nn.MaxPool2d(2))
        layers.add_module("conv1", nn.Conv2d(first, second, _KERNEL, padding=_SAME))
        layers.add_module("conv1_activation", activation_layer(self.activation))
        layers.add_module("pool1", nn.MaxPool2d(2))
        dense = fully_connected(
            second * (height // 2 // 2) * (width // 2 // 2),
            (self.hidden,),
            self.embedding,
            activation=self.activation,
            dropout=self.dropout,
            activate_output=self.activate_output,
            flatten=True,
        )
        layers.add_module("dense", dense)
        return layers


@register_encoder
@final
@dataclass(frozen=True, kw_only=True)
class LeNetSpec(EncoderSpec):
    """Three convolutions, one pooling layer, three fully connected layers (LeNet-5's widths).

    LeNet-5 shrinks the image by unpadded kernels and two poolings. With one pooling layer, and
    blocks too narrow for unpadded kernels, the second and third convolutions shrink it by stride.
    """

    kind: ClassVar[str] = "lenet"

    channels: tuple[int, ...] = (6, 16, 120)
    hidden: tuple[int, ...] = (120, 84)
    activation: Activation = "relu"
    activate_output: bool = False
    dropout: float = 0.0  # after each hidden fully connected layer

    def check(self) -> None:
        check_sizes("channels", self.channels, length=3)
        check_sizes("hidden", self.hidden, length=2)
        check_activation(self.activation)
        check_flag("activate_output", self.activate_output)
        check_rate("dropout", self.dropout)

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        channels, height, width = image_shape(self.kind, input_shape, smallest=2)
        first, second, third = self.channels
        layers = nn.Sequential()
        layers.add_module("conv0", nn.Conv2d(channels, first, _KERNEL, padding=_SAME))
        layers.add_module("conv0_activation", activation_layer(self.activation))
        layers.add_module("pool", nn.MaxPool2d(2))
        layers.add_module("conv1", nn.Conv2d(first, second, _KERNEL, stride=2, padding=_SAME))
        layers.add_module("conv1_activation", activation_layer(self.activation))
        layers.add_module("conv2", nn.Conv2d(second, third, _KERNEL, stride=2, padding=_SAME))
        layers.add_module("conv2_activation", activation_layer(self.activation))
        dense = fully_connected(
            third * _after_lenet(height) * _after_lenet(width),
            self.hidden,
            self.embedding,
            activation=self.activation,
            dropout=self.dropout,
            activate_output=self.activate_output,
            flatten=True,
        )
        layers.add_module("dense", dense)
        return layers


def _after_lenet(size: int) -> int:
    """Count the pixels left of one axis: the pooling rounds down, each stride rounds up."""
    pooled = size // 2
    strided = (pooled + 1) // 2
    return (strided + 1) // 2
