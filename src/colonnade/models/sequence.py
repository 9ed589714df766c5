"""An encoder for sequences: an LSTM and a projection of its last state."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError
from colonnade.models.registry import (
    MOST_LAYERS,
    EncoderSpec,
    check_count,
    check_flag,
    check_rate,
    check_shape,
    deterministic,
    register_encoder,
)

__all__ = ["LSTMEncoder", "LSTMSpec"]


@deterministic
@final
class LSTMEncoder(nn.Module):
    """Runs over (batch, time, features) and projects the top layer's last hidden state."""

    def __init__(
        self,
        num_features: int,
        hidden: int,
        num_layers: int,
        bidirectional: bool,
        dropout: float,
        embedding: int,
    ) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            num_features,
            hidden,
            num_layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout,
        )
        self.project = nn.Linear(hidden * (2 if bidirectional else 1), embedding)

    def forward(self, x: Tensor) -> Tensor:
        _, (state, _) = self.lstm(x)
        # With two directions the last two rows are the top layer's: forwards, then backwards.
        last = torch.cat((state[-2], state[-1]), dim=1) if self.lstm.bidirectional else state[-1]
        out: Tensor = self.project(last)
        return out


@register_encoder
@final
@dataclass(frozen=True, kw_only=True)
class LSTMSpec(EncoderSpec):
    """An LSTM over samples of shape (time, features).

    Args:
        hidden: The width of the hidden state.
        num_layers: The number of stacked layers.
        bidirectional: Whether it also reads backwards.
        dropout: The dropout rate between stacked layers.
    """

    kind: ClassVar[str] = "lstm"

    hidden: int = 64
    num_layers: int = 1
    bidirectional: bool = False
    dropout: float = 0.0

    def check(self) -> None:
        check_count("hidden", self.hidden)
        check_count("num_layers", self.num_layers, maximum=MOST_LAYERS)
        check_flag("bidirectional", self.bidirectional)
        check_rate("dropout", self.dropout)
        if self.dropout > 0 and self.num_layers == 1:
            raise ConfigError(
                f"dropout = {self.dropout!r}: it acts between stacked layers and num_layers = 1 "
                "has none; set num_layers = 2 or more, or dropout = 0.0"
            )

    def build(self, input_shape: tuple[int, ...]) -> nn.Module:
        check_shape(
            self.kind,
            input_shape,
            ("time", "features"),
            "give the party a block of sequences, or use kind = 'mlp', which takes any shape",
        )
        _, num_features = input_shape
        return LSTMEncoder(
            num_features,
            self.hidden,
            self.num_layers,
            self.bidirectional,
            self.dropout,
            self.embedding,
        )
