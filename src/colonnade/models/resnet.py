"""Residual encoders for images: ResNet-18, ResNet-50 and ResNet-101 (He et al. 2016).

Depths are those of the paper's table 1. There are two stems: the paper's for large images, and a
single 3x3 convolution that keeps the resolution of small ones. In a bottleneck the stride is on the
3x3 convolution, because a strided 1x1 would drop three quarters of its input.

Group norm (Wu and He 2018) can replace batch norm: a sample's embedding then depends on that
sample alone. A group has about 16 channels, or all where there are fewer.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

from torch import Tensor, nn

from colonnade.models.image_encoders import image_shape
from colonnade.models.registry import (
    EncoderSpec,
    check_choice,
    check_sizes,
    deterministic,
    register_encoder,
)

__all__ = [
    "BasicBlock",
    "BottleneckBlock",
    "Norm",
    "ResNet",
    "ResNet18Spec",
    "ResNet50Spec",
    "ResNet101Spec",
    "ResNetSpec",
    "Stem",
]

Stem = Literal["small", "imagenet"]
Norm = Literal["batch", "group"]

_CHANNELS_PER_GROUP = 16


def _conv_and_norm(
    norm: Norm, num_inputs: int, num_outputs: int, kernel: int, stride: int
) -> nn.Sequential:
    # The normalisation's own shift makes a bias in the convolution redundant.
    conv = nn.Conv2d(num_inputs, num_outputs, kernel, stride, padding=kernel // 2, bias=False)
    layers = nn.Sequential()
    layers.add_module("conv", conv)
    layers.add_module("norm", _norm(norm, num_outputs))
    return layers


def _norm(norm: Norm, channels: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(channels, max(1, channels // _CHANNELS_PER_GROUP)), channels)


def _shortcut(norm: Norm, num_inputs: int, num_outputs: int, stride: int) -> nn.Module:
    """Make the shortcut of a block: the identity where shapes agree, or else a 1x1 projection."""
    if stride == 1 and num_inputs == num_outputs:
        return nn.Identity()
    return _conv_and_norm(norm, num_inputs, num_outputs, 1, stride)


@deterministic
@final
class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    expansion: ClassVar[int] = 1

    def __init__(self, norm: Norm, num_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = _conv_and_norm(norm, num_inputs, width, 3, stride)
        self.second = _conv_and_norm(norm, width, width, 3, 1)
        self.shortcut = _shortcut(norm, num_inputs, width, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        residual = self.second(self.relu(self.first(x)))
        out: Tensor = self.relu(residual + self.shortcut(x))
        return out


@deterministic
@final
class BottleneckBlock(nn.Module):
    """A 1x1 convolution down, a 3x3, a 1x1 up to four times the width, and a shortcut."""

    expansion: ClassVar[int] = 4

    def __init__(self, norm: Norm, num_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.down = _conv_and_norm(norm, num_inputs, width, 1, 1)
        self.middle = _conv_and_norm(norm, width, width, 3, stride)
        self.up = _conv_and_norm(norm, width, width * self.expansion, 1, 1)
        self.shortcut = _shortcut(norm, num_inputs, width * self.expansion, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        residual = self.up(self.relu(self.middle(self.relu(self.down(x)))))
        out: Tensor = self.relu(residual + self.shortcut(x))
        return out


Block = type[BasicBlock] | type[BottleneckBlock]


@deterministic
@final
class ResNet(nn.Module):
    """A stem, four stages of residual blocks, the mean over pixels, a linear projection."""

    def __init__(
        self,
        channels: int,
        block: Block,
        num_blocks: tuple[int, ...],
        widths: tuple[int, ...],
        stem: Stem,
        norm: Norm,
        embedding: int,
    ) -> None:
        super().__init__()
        large = stem == "imagenet"
        kernel, stride = (7, 2) if large else (3, 1)
        self.stem = _conv_and_norm(norm, channels, widths[0], kernel, stride)
        self.stem.add_module("relu", nn.ReLU())
        if large:
            self.stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
        self.stages = nn.Sequential()
        num_channels = widths[0]
        for stage, (width, count) in enumerate(zip(widths, num_blocks, strict=True)):
            blocks = nn.Sequential()
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(norm, num_channels, width, stride))
                num_channels = width * block.expansion
            self.stages.add_module(f"stage{stage}", blocks)
        self.project = nn.Linear(num_channels, embedding)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.stages(self.stem(x)).mean(dim=(2, 3)))
        return out


@dataclass(frozen=True, kw_only=True)
class ResNetSpec(EncoderSpec):
    """The settings that the three depths share.

    With batch norm, a batch of one sample can't train on feature maps of one pixel.

    Args:
        stem: ``small`` keeps the resolution, ``imagenet`` divides it by four.
        norm: ``batch`` or ``group``.
        widths: The channels of the four stages.
    """

    # The kind of block, and the number of blocks of each of the four stages.
    plan: ClassVar[tuple[Block, tuple[int, ...]]]

    stem: Stem = "small"
    norm: Norm = "batch"
    widths: tuple[int, ...] = (64, 128, 256, 512)

    @final
    def check(self) -> None:
        check_choice("stem", self.stem, get_args(Stem))
        check_choice("norm", self.norm, get_args(Norm))
        check_sizes("widths", self.widths, length=4)

    @final
    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        channels, _, _ = image_shape(self.kind, input_shape)
        block, num_blocks = self.plan
        return ResNet(
            channels, block, num_blocks, self.widths, self.stem, self.norm, self.embedding
        )


@register_encoder
@final
@dataclass(frozen=True, kw_only=True)
class ResNet18Spec(ResNetSpec):
    """ResNet-18: basic blocks."""

    kind: ClassVar[str] = "resnet18"
    plan: ClassVar[tuple[Block, tuple[int, ...]]] = (BasicBlock, (2, 2, 2, 2))


@register_encoder
@final
@dataclass(frozen=True, kw_only=True)
class ResNet50Spec(ResNetSpec):
    """ResNet-50: bottlenecks."""

    kind: ClassVar[str] = "resnet50"
    plan: ClassVar[tuple[Block, tuple[int, ...]]] = (BottleneckBlock, (3, 4, 6, 3))


@register_encoder
@final
@dataclass(frozen=True, kw_only=True)
class ResNet101Spec(ResNetSpec):
    """ResNet-101: bottlenecks."""

    kind: ClassVar[str] = "resnet101"
    plan: ClassVar[tuple[Block, tuple[int, ...]]] = (BottleneckBlock, (3, 4, 23, 3))
