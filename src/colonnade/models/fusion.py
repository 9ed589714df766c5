"""Fusions: the label holder's networks over the parties' embeddings.

A fusion takes {party: embedding}. It reads embeddings in the sorted order of the parties' names, so
that a result never depends on who answered first.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError, DataError, MissingBlock
from colonnade.models.mlp import Activation, check_activation, fully_connected
from colonnade.models.registry import (
    Combine,
    FusionSpec,
    check_count,
    check_rate,
    check_sizes,
    deterministic,
    register_fusion,
)

__all__ = [
    "ConcatFusion",
    "LinearFusionSpec",
    "MLPFusionSpec",
    "MeanFusion",
    "NoFusion",
    "fusion_over",
]


class _Fusion(nn.Module, ABC):
    """A network over the embeddings of several parties.

    Args:
        parties: The names of the parties, in order.
        head: The network over the combined embeddings.
    """

    def __init__(self, parties: tuple[str, ...], head: nn.Module) -> None:
        super().__init__()
        self.parties = parties
        self.head = head

    def forward(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Fuse one batch.

        Args:
            embeddings: (batch, embedding) of each party, by its name.

        Returns:
            (batch, outputs) logits.

        Raises:
            MissingBlock: An embedding that the fusion needs is missing.
            DataError: There is an embedding of a party that the fusion was not built for.
        """
        blocks = [embeddings[party] for party in self.parties if party in embeddings]
        if len(embeddings) != len(blocks):
            strangers = sorted(set(embeddings) - set(self.parties))
            raise DataError(
                f"fusion was built for the parties {', '.join(self.parties)}, got embeddings also "
                f"from {', '.join(strangers)}; build the fusion with every party that takes part"
            )
        out: Tensor = self.head(self._combined(blocks, embeddings))
        return out

    @abstractmethod
    def _combined(self, blocks: list[Tensor], embeddings: Mapping[str, Tensor]) -> Tensor:
        """One tensor for the head, of the embeddings in the order of the parties."""


@deterministic
@final
class ConcatFusion(_Fusion):
    """A network over the embeddings side by side; needs one from every party."""

    def _combined(self, blocks: list[Tensor], embeddings: Mapping[str, Tensor]) -> Tensor:
        if len(blocks) < len(self.parties):
            missing = [party for party in self.parties if party not in embeddings]
            raise MissingBlock(
                f"fusion with combine = 'concat' needs an embedding from every party, missing: "
                f"{', '.join(missing)}; wait for them, or use combine = 'mean', which takes the "
                "parties that are there"
            )
        return torch.cat(blocks, dim=1)


@deterministic
@final
class MeanFusion(_Fusion):
    """A network over the mean of the embeddings that are there; needs at least one."""

    def _combined(self, blocks: list[Tensor], embeddings: Mapping[str, Tensor]) -> Tensor:
        if not blocks:
            raise MissingBlock(
                "fusion with combine = 'mean' needs an embedding from at least one party, none "
                f"came from: {', '.join(self.parties)}; wait for one of them"
            )
        total = blocks[0]
        for block in blocks[1:]:
            total = total + block
        return total * (1.0 / len(blocks))


@deterministic
@final
class NoFusion(nn.Module):
    """A placeholder for methods without a network at the label holder."""

    def __init__(self) -> None:
        super().__init__()
        # Optimizers refuse an empty list; this one holds no number and never gets a gradient.
        self.nothing = nn.Parameter(torch.zeros(0))

    def forward(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        """Raise DataError, whatever the ``embeddings``.

        Returns:
            Nothing.

        Raises:
            DataError: Always.
        """
        raise DataError("this method has no network at the label holder; ask the parties' own")


def fusion_over(
    combine: Combine,
    embedding_sizes: Mapping[str, int],
    num_outputs: int,
    make_head: Callable[[int], nn.Module],
) -> nn.Module:
    """Make a fusion with a network over the combined embeddings.

    Args:
        combine: How embeddings are combined.
        embedding_sizes: The width of each party's embedding, by the party's name.
        num_outputs: The number of logits.
        make_head: Makes the network, from the width of the combined embeddings.

    Returns:
        The fusion.

    Raises:
        ConfigError: There is no party, a size is not positive, or a mean over different sizes.
    """
    if not embedding_sizes:
        raise ConfigError("embedding_sizes is empty: a fusion needs at least one party; name one")
    check_count("num_outputs", num_outputs)
    parties = tuple(sorted(embedding_sizes))
    sizes = [embedding_sizes[party] for party in parties]
    for party, size in zip(parties, sizes, strict=True):
        check_count(f"embedding size of party {party!r}", size)
    if combine == "mean" and len(set(sizes)) > 1:
        listed = ", ".join(f"{party} = {size}" for party, size in zip(parties, sizes, strict=True))
        raise ConfigError(
            f"combine = 'mean': expected embeddings of one size, got {listed}; set the same "
            "embedding in every party's encoder, or use combine = 'concat'"
        )
    width = sum(sizes) if combine == "concat" else sizes[0]
    fusion = ConcatFusion if combine == "concat" else MeanFusion
    return fusion(parties, make_head(width))


@register_fusion
@final
@dataclass(frozen=True, kw_only=True)
class MLPFusionSpec(FusionSpec):
    """A multi-layer perceptron over the combined embeddings; its outputs are raw logits.

    Args:
        hidden: The widths of the hidden layers.
        activation: The activation after each hidden layer.
        dropout: The dropout rate after each hidden layer.
    """

    kind: ClassVar[str] = "mlp"

    hidden: tuple[int, ...] = (32,)
    activation: Activation = "relu"
    dropout: float = 0.0

    def check(self) -> None:
        check_sizes("hidden", self.hidden)
        check_activation(self.activation)
        check_rate("dropout", self.dropout)

    def build(self, embedding_sizes: Mapping[str, int], num_outputs: int) -> nn.Module:
        def head(width: int) -> nn.Module:
            kind, rate = self.activation, self.dropout
            return fully_connected(width, self.hidden, num_outputs, activation=kind, dropout=rate)

        return fusion_over(self.combine, embedding_sizes, num_outputs, head)


@register_fusion
@final
@dataclass(frozen=True, kw_only=True)
class LinearFusionSpec(FusionSpec):
    """One linear layer over the combined embeddings; its outputs are raw logits."""

    kind: ClassVar[str] = "linear"

    def check(self) -> None:
        """Nothing to check: how embeddings combine is the only field."""

    def build(self, embedding_sizes: Mapping[str, int], num_outputs: int) -> nn.Module:
        def head(width: int) -> nn.Module:
            return fully_connected(width, (), num_outputs, activation="identity", dropout=0.0)

        return fusion_over(self.combine, embedding_sizes, num_outputs, head)
