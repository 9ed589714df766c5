"""What describes a model, and the tables that name every kind of it.

A *spec* is a frozen record of simple values: its field names are the keys a user writes in the
configuration. It is checked when it is made, so a bad value is found before any training starts.
`build` turns it into a `torch.nn.Module` whose weights come from torch's own initialisation and
the global random state; whoever wants a repeatable model seeds that state first.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, TypeVar, get_args

from torch import nn

from colonnade.core.errors import ConfigError
from colonnade.core.seeds import is_drawing_nothing

__all__ = [
    "ENCODERS",
    "FUSIONS",
    "Combine",
    "EncoderSpec",
    "FusionSpec",
    "check_choice",
    "check_count",
    "check_flag",
    "check_rate",
    "check_shape",
    "check_sizes",
    "deterministic",
    "is_deterministic",
    "register_encoder",
    "register_fusion",
]

Combine = Literal["concat", "mean"]


@dataclass(frozen=True, kw_only=True)
class EncoderSpec(ABC):
    """Describes an encoder: (batch, *input_shape) floats in, (batch, embedding) floats out."""

    kind: ClassVar[str]

    embedding: int = 32

    def __post_init__(self) -> None:
        check_count("embedding", self.embedding)
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigError if a field of this kind holds a value it cannot have."""

    @abstractmethod
    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        """Make the encoder for samples of this shape (the batch axis is not part of it)."""


@dataclass(frozen=True, kw_only=True)
class FusionSpec(ABC):
    """Describes a fusion: {party: (batch, its embedding)} in, (batch, num_outputs) logits out."""

    kind: ClassVar[str]

    combine: Combine = "concat"

    def __post_init__(self) -> None:
        check_choice("combine", self.combine, get_args(Combine))
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigError if a field of this kind holds a value it cannot have."""

    @abstractmethod
    def build(self, embedding_sizes: Mapping[str, int], num_outputs: int) -> nn.Module:
        """Make the fusion for these parties and the sizes of their embeddings."""


_encoders: dict[str, type[EncoderSpec]] = {}
_fusions: dict[str, type[FusionSpec]] = {}

ENCODERS: Mapping[str, type[EncoderSpec]] = MappingProxyType(_encoders)
"""Every kind of encoder by the name a configuration uses."""

FUSIONS: Mapping[str, type[FusionSpec]] = MappingProxyType(_fusions)
"""Every kind of fusion by the name a configuration uses."""

_EncoderT = TypeVar("_EncoderT", bound=EncoderSpec)
_FusionT = TypeVar("_FusionT", bound=FusionSpec)
_ModuleT = TypeVar("_ModuleT", bound=nn.Module)


def register_encoder(spec: type[_EncoderT]) -> type[_EncoderT]:
    """Enter an encoder spec into `ENCODERS` under its `kind`."""
    if spec.kind in _encoders:
        raise ConfigError(f"encoder kind {spec.kind!r} is taken: give {spec.__name__} another kind")
    _encoders[spec.kind] = spec
    return spec


def register_fusion(spec: type[_FusionT]) -> type[_FusionT]:
    """Enter a fusion spec into `FUSIONS` under its `kind`."""
    if spec.kind in _fusions:
        raise ConfigError(f"fusion kind {spec.kind!r} is taken: give {spec.__name__} another kind")
    _fusions[spec.kind] = spec
    return spec


# Checks of single fields. Each message names the key, the value and the remedy.


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """Require a whole number of at least `minimum` (True and False are not numbers here)."""
    if type(value) is not int or value < minimum:
        raise ConfigError(
            f"{name} = {value!r}: expected a whole number of at least {minimum}; "
            f"set {name} to one, for example {name} = {max(minimum, 1)}"
        )


def check_sizes(name: str, value: object, length: int | None = None) -> None:
    """Require a tuple of positive whole numbers, of the given length if there is one."""
    wanted = "a list of" if length is None else f"a list of exactly {length}"
    if (
        not isinstance(value, tuple)
        or (length is not None and len(value) != length)
        or any(type(size) is not int or size < 1 for size in value)
    ):
        example = [64] * (1 if length is None else length)
        raise ConfigError(
            f"{name} = {value!r}: expected {wanted} positive whole numbers "
            f"(a tuple when set from Python); for example {name} = {example}"
        )


def check_rate(name: str, value: object) -> None:
    """Require a probability in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigError(
            f"{name} = {value!r}: expected a number from 0 up to but not including 1; "
            f"set {name} = 0.0 to switch it off"
        )


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Require one of the named choices."""
    if value not in choices:
        raise ConfigError(f"{name} = {value!r}: unknown; choose one of {', '.join(choices)}")


def check_flag(name: str, value: object) -> None:
    """Require true or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r}: expected true or false; write one without quotes")


def check_shape(
    kind: str,
    input_shape: tuple[int, ...],
    axes: tuple[str, ...] | None,
    remedy: str,
) -> None:
    """Require a sample shape with these axes (None: any axes, but at least one)."""
    expected = "at least one axis" if axes is None else f"({', '.join(axes)})"
    fits = len(input_shape) > 0 if axes is None else len(input_shape) == len(axes)
    if not fits or any(type(size) is not int or size < 1 for size in input_shape):
        raise ConfigError(
            f"encoder kind = {kind!r}: expected samples of shape {expected}, every size positive, "
            f"got {tuple(input_shape)!r}; {remedy}"
        )


# Which modules draw no random numbers in a forward pass.

_WITHOUT_RANDOMNESS: set[type[nn.Module]] = {
    nn.Linear,
    nn.Bilinear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.SiLU,
    nn.GELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Identity,
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
    nn.Flatten,
    nn.Unflatten,
    nn.Embedding,
}
_RANDOM_UNLESS_DROPOUT_IS_ZERO = (nn.LSTM, nn.GRU, nn.RNN)
_RANDOM_UNLESS_P_IS_ZERO = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def deterministic(module_class: type[_ModuleT]) -> type[_ModuleT]:
    """Declare that this class's own forward draws no random numbers; children are judged too."""
    _WITHOUT_RANDOMNESS.add(module_class)
    return module_class


def is_deterministic(module: nn.Module) -> bool:
    """Say whether a forward pass surely draws no random numbers, in training mode as well.

    Only classes known by exact type count: a subclass may do anything in its forward, and so may
    a hook that is not declared to draw nothing. A class this package does not know answers False,
    which is always safe: it costs the caller a seeding it might not have needed. About random
    numbers only, not about the order of floating-point sums on a GPU.
    """
    return all(_draws_nothing(part) for part in module.modules())


def _draws_nothing(part: nn.Module) -> bool:
    hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    if not all(map(is_drawing_nothing, hooks)) or "forward" in vars(part):
        return False
    if type(part) in _RANDOM_UNLESS_DROPOUT_IS_ZERO:
        return bool(part.dropout == 0)
    if type(part) in _RANDOM_UNLESS_P_IS_ZERO:
        return bool(part.p == 0)
    return type(part) in _WITHOUT_RANDOMNESS
