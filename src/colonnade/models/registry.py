"""The base classes of specs, the registries of encoders and fusions, and checks of settings.

A *spec* is a frozen record of simple values; its fields are the keys in a configuration. It is
checked when it is made, before any training starts. `build` makes a `torch.nn.Module` whose weights
come from torch's initialisation and its global random state: seed that state first for a
repeatable model. Each kind of network is in a module of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar, get_args

from torch import nn

from colonnade.core.errors import ConfigError

__all__ = [
    "ENCODERS",
    "FUSIONS",
    "MOST_LAYERS",
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
    """The settings of an encoder: ``(batch, *input_shape)`` floats in, (batch, embedding) out.

    Args:
        embedding: The width of the embedding.

    Raises:
        ConfigError: A setting has a value that it can't have.
    """

    kind: ClassVar[str]

    embedding: int = 32

    def __post_init__(self) -> None:
        check_count("embedding", self.embedding)
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Check the settings of this kind.

        Raises:
            ConfigError: A setting has a value that it can't have.
        """

    @property
    def is_linear(self) -> bool:
        """Whether no nonlinearity stands between two layers; then weights hide little."""
        return False

    @abstractmethod
    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        """Make the encoder.

        Args:
            input_shape: The shape of one sample, without the batch axis.

        Returns:
            A module from ``(batch, *input_shape)`` to (batch, embedding).

        Raises:
            ConfigError: The encoder can't take samples of this shape.
        """


@dataclass(frozen=True, kw_only=True)
class FusionSpec(ABC):
    """The settings of a fusion: embeddings by party in, (batch, num_outputs) logits out.

    Args:
        combine: ``concat`` needs every party's embedding; ``mean`` averages those that are there.

    Raises:
        ConfigError: A setting has a value that it can't have.
    """

    kind: ClassVar[str]

    combine: Combine = "concat"

    def __post_init__(self) -> None:
        check_choice("combine", self.combine, get_args(Combine))
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Check the settings of this kind.

        Raises:
            ConfigError: A setting has a value that it can't have.
        """

    @abstractmethod
    def build(self, embedding_sizes: Mapping[str, int], num_outputs: int) -> nn.Module:
        """Make the fusion.

        Args:
            embedding_sizes: The width of each party's embedding, by the party's name.
            num_outputs: The number of logits.

        Returns:
            A module from a mapping of embeddings by party to (batch, num_outputs).

        Raises:
            ConfigError: There is no party, a size is not positive, or a mean over different sizes.
        """


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
    _register(_encoders, spec, "encoder")
    return spec


def register_fusion(spec: type[_FusionT]) -> type[_FusionT]:
    """Enter a fusion spec into `FUSIONS` under its `kind`."""
    _register(_fusions, spec, "fusion")
    return spec


def _register(kinds: dict[str, Any], spec: Any, what: str) -> None:
    if spec.kind in kinds:
        raise ConfigError(f"{what} kind {spec.kind!r} is taken: give {spec.__name__} another kind")
    kinds[spec.kind] = spec


# Checks of single fields. Each message names the key, the value and the remedy.


# More of them take minutes to make, before anybody can count their weights.
MOST_LAYERS = 1_000
_MOST = 2**31 - 1


def check_count(name: str, value: object, minimum: int = 1, maximum: int = _MOST) -> None:
    """Require a whole number of at least `minimum` (True and False are not numbers here)."""
    if type(value) is not int or value < minimum:
        raise ConfigError(
            f"{name} = {value!r}: expected a whole number of at least {minimum}; "
            f"set {name} to one, for example {name} = {max(minimum, 1)}"
        )
    if value > maximum:
        raise ConfigError(f"{name}: at most {maximum}, got a number of {len(str(value))} digits")


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
            f"{name} = {repr(value)[:100]}: expected {wanted} positive whole numbers "
            f"(a tuple when set from Python); for example {name} = {example}"
        )
    if len(value) > MOST_LAYERS or any(size > _MOST for size in value):
        raise ConfigError(f"{name}: at most {MOST_LAYERS} numbers, each at most {_MOST}")


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


# Modules that draw no random numbers in a forward pass.

_WITHOUT_RANDOMNESS: set[type[nn.Module]] = {
    *(nn.Linear, nn.Bilinear, nn.Embedding, nn.Flatten, nn.Unflatten, nn.Identity),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Tanh, nn.Sigmoid),
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict),
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
}
_RANDOM_UNLESS_DROPOUT_IS_ZERO = (nn.LSTM, nn.GRU, nn.RNN)
_RANDOM_UNLESS_P_IS_ZERO = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def deterministic(module_class: type[_ModuleT]) -> type[_ModuleT]:
    """Declare that the forward of a module class draws no random numbers; for use as a decorator.

    Args:
        module_class: The class. Its children are judged by their own classes.

    Returns:
        The same class.
    """
    _WITHOUT_RANDOMNESS.add(module_class)
    return module_class


def is_deterministic(module: nn.Module) -> bool:
    """Say whether a forward pass surely draws no random numbers, in training mode as well.

    Args:
        module: The network. Each part is judged by its exact class, because a subclass may do
            anything in its forward; so may a hook.

    Returns:
        False for any part that is unknown here, which only costs the caller a seeding that it may
        not have needed. Nothing is said about the order of floating-point sums on a GPU.
    """
    return all(_draws_nothing(part) for part in module.modules())


def _draws_nothing(part: nn.Module) -> bool:
    hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    if hooks or "forward" in vars(part):
        return False
    if type(part) in _RANDOM_UNLESS_DROPOUT_IS_ZERO:
        return bool(part.dropout == 0)
    if type(part) in _RANDOM_UNLESS_P_IS_ZERO:
        return bool(part.p == 0)
    return type(part) in _WITHOUT_RANDOMNESS
