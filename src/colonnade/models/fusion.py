"""Fusions: the label holder's networks over the parties' embeddings.

A fusion is called with {party: embedding}. Blocks are taken in the sorted order of the party
names, fixed when the fusion is built, so that a result never depends on who answered first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NoReturn, final

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

__all__ = ["ConcatFusion", "LinearFusionSpec", "MLPFusionSpec", "MeanFusion", "NoFusion"]


@deterministic
@final
class ConcatFusion(nn.Module):
    """Lays the embeddings side by side; needs one from every party."""

    def __init__(self, parties: tuple[str, ...], head: nn.Module) -> None:
        super().__init__()
        self.parties = parties
        self.head = head

    def forward(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        try:
            blocks = [embeddings[party] for party in self.parties]
        except KeyError:
            missing = [party for party in self.parties if party not in embeddings]
            raise MissingBlock(
                f"fusion with combine = 'concat' needs an embedding from every party, missing: "
                f"{', '.join(missing)}; wait for them, or use combine = 'mean', which takes the "
                "parties that are there"
            ) from None
        if len(embeddings) != len(blocks):
            _refuse_strangers(self.parties, embeddings)
        out: Tensor = self.head(torch.cat(blocks, dim=1))
        return out


@deterministic
@final
class MeanFusion(nn.Module):
    """Averages the embeddings that are there; needs at least one."""

    def __init__(self, parties: tuple[str, ...], head: nn.Module) -> None:
        super().__init__()
        self.parties = parties
        self.head = head

    def forward(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        blocks = [embeddings[party] for party in self.parties if party in embeddings]
        if len(embeddings) != len(blocks):
            _refuse_strangers(self.parties, embeddings)
        if not blocks:
            raise MissingBlock(
                "fusion with combine = 'mean' needs an embedding from at least one party, none "
                f"came from: {', '.join(self.parties)}; wait for one of them"
            )
        total = blocks[0]
        for block in blocks[1:]:
            total = total + block
        out: Tensor = self.head(total * (1.0 / len(blocks)))
        return out


@deterministic
@final
class NoFusion(nn.Module):
    """Stands where a method has no network at the label holder."""

    def __init__(self) -> None:
        super().__init__()
        # Optimizers refuse an empty list; this one holds no number and never gets a gradient.
        self.nothing = nn.Parameter(torch.zeros(0))

    def forward(self, embeddings: Mapping[str, Tensor]) -> Tensor:
        raise DataError("this method has no network at the label holder; ask the parties' own")


def _refuse_strangers(parties: tuple[str, ...], embeddings: Mapping[str, Tensor]) -> NoReturn:
    strangers = sorted(set(embeddings) - set(parties))
    raise DataError(
        f"fusion was built for the parties {', '.join(parties)}, got embeddings also from "
        f"{', '.join(strangers)}; build the fusion with every party that takes part"
    )


def _fuse(
    combine: Combine,
    embedding_sizes: Mapping[str, int],
    num_outputs: int,
    hidden: tuple[int, ...],
    activation: Activation,
    dropout: float,
) -> nn.Module:
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
    head = fully_connected(width, hidden, num_outputs, activation=activation, dropout=dropout)
    fusion = ConcatFusion if combine == "concat" else MeanFusion
    return fusion(parties, head)


@register_fusion
@final
@dataclass(frozen=True, kw_only=True)
class MLPFusionSpec(FusionSpec):
    """A multi-layer perceptron over the combined embeddings; its outputs are raw logits."""

    kind: ClassVar[str] = "mlp"

    hidden: tuple[int, ...] = (32,)
    activation: Activation = "relu"
    dropout: float = 0.0

    def check(self) -> None:
        check_sizes("hidden", self.hidden)
        check_activation(self.activation)
        check_rate("dropout", self.dropout)

    def build(self, embedding_sizes: Mapping[str, int], num_outputs: int) -> nn.Module:
        return _fuse(
            self.combine, embedding_sizes, num_outputs, self.hidden, self.activation, self.dropout
        )


@register_fusion
@final
@dataclass(frozen=True, kw_only=True)
class LinearFusionSpec(FusionSpec):
    """One linear layer over the combined embeddings; its outputs are raw logits."""

    kind: ClassVar[str] = "linear"

    def check(self) -> None:
        """Nothing to check: how embeddings combine is the only field."""

    def build(self, embedding_sizes: Mapping[str, int], num_outputs: int) -> nn.Module:
        return _fuse(self.combine, embedding_sizes, num_outputs, (), "identity", 0.0)
