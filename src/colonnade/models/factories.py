"""Networks that a function of the caller's own makes; only in the process of the caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, final

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from colonnade.core.errors import ConfigError
from colonnade.core.own_code import OwnCode
from colonnade.models.custom import check_output
from colonnade.models.fusion import fusion_over
from colonnade.models.registry import EncoderSpec, FusionSpec

__all__ = ["Factory", "FactoryFusionSpec", "FactoryHeadSpec", "FactorySpec"]

# (what goes in, the width of what comes out) -> a network.
Factory: TypeAlias = Callable[[Any, int], nn.Module]

# Every parameter that a factory gave: two networks never share one.
_GIVEN = WeakIdKeyDictionary()


@final
@dataclass(frozen=True, kw_only=True)
class FactorySpec(EncoderSpec):
    """An encoder that a function makes.

    Args:
        factory: Called with the number of columns, or the shape of one sample that is no row of
            columns, and with the embedding's width.
    """

    kind: ClassVar[str] = "factory"

    factory: OwnCode

    def check(self) -> None:
        """Nothing to check before it is called."""

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        return _made(self.factory, input_shape, self.embedding)


@final
@dataclass(frozen=True, kw_only=True)
class FactoryFusionSpec(FusionSpec):
    """A fusion whose network over the combined embeddings a function makes.

    Args:
        factory: Called with the width of the combined embeddings and the number of outputs.
    """

    kind: ClassVar[str] = "factory"

    factory: OwnCode

    def check(self) -> None:
        """Nothing to check before it is called."""

    def build(self, embedding_sizes: Mapping[str, int], num_outputs: int) -> nn.Module:
        return fusion_over(
            self.combine,
            embedding_sizes,
            num_outputs,
            lambda width: _made(self.factory, (width,), num_outputs),
        )


@final
@dataclass(frozen=True, kw_only=True)
class FactoryHeadSpec:
    """A head that a function makes.

    Args:
        factory: Called with the embedding's width and the number of outputs.
    """

    factory: OwnCode

    def build(self, embedding: int, num_outputs: int) -> nn.Module:
        """Make the head.

        Args:
            embedding: The width of the embedding.
            num_outputs: The number of logits.

        Returns:
            A module from (batch, embedding) to (batch, num_outputs).

        Raises:
            ConfigError: The function fails, or its network does not fit.
        """
        return _made(self.factory, (embedding,), num_outputs)


def _made(own: OwnCode, input_shape: tuple[int, ...], width: int) -> nn.Module:
    """Call a factory and check the network that it gives."""

    def wrong(problem: str) -> ConfigError:
        return ConfigError(f"{own.setting}: {problem}")

    taken: Any = input_shape[0] if len(input_shape) == 1 else input_shape
    try:
        module = own.function(taken, width)
    except Exception as error:  # a caller's function may raise anything at all
        raise wrong(
            f"the function failed when called with ({taken!r}, {width}): "
            f"{type(error).__name__}: {error}; it takes what goes in and the width of what comes "
            "out"
        ) from error
    if not isinstance(module, nn.Module):
        raise wrong(
            f"expected a function that returns a torch.nn.Module, it returned "
            f"{type(module).__name__}"
        )
    with torch.no_grad():
        if any(parameter in _GIVEN for parameter in module.parameters()):
            raise wrong(
                "the function returned weights that it has returned before; make a new network at "
                "every call, because every party has its own"
            )
        for parameter in module.parameters():
            _GIVEN[parameter] = True
    check_output(module, input_shape, width, wrong)
    return module
