"""A party's own settings for training: what it decides about itself, whatever is proposed.

The label holder proposes an encoder, a head, an optimizer and a preparation. A party that has its
own in ``party.toml`` takes these; its policy holds for both. The width of the embedding is agreed,
because the label holder's fusion model depends on it. First weights and dropout come from a secret
of the party's own, so that the label holder can't rebuild the first encoder and invert it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colonnade.core.config import Choice
from colonnade.core.devices import Precision, check_device
from colonnade.core.errors import ConfigError, StorageError
from colonnade.core.optimizers import OptimizerSpec
from colonnade.core.schedules import SCHEDULES, Schedule
from colonnade.data.prepare import PrepareSpec
from colonnade.files import write_atomically
from colonnade.models import ENCODERS, EncoderSpec, HeadSpec
from colonnade.run.spec import PartySpec, RunSpec

__all__ = [
    "OWN_CHOICES",
    "OwnSettings",
    "effective_settings",
    "on_own_device",
    "own_seed",
    "refuse_own_width",
]

OWN_CHOICES: Mapping[type, Choice] = {
    EncoderSpec: Choice(tag="kind", options=ENCODERS),
    Schedule: SCHEDULES,
}

SECRET = "first_weights.key"
_NUM_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class OwnSettings:
    """The table ``[own]`` of party.toml; where a key is left out, the proposal is taken.

    Attributes:
        encoder: The network, batch norm and dropout included; its width is the agreed one.
        head: The network from an embedding to outputs, for methods that give it one.
        optimizer: The optimizer.
        prepare: How columns become features.
        device: Where its networks compute, by default the CPU: never the proposal's device, which
            is of another machine.
        precision: Whether large operations are in bfloat16, by default not.
    """

    encoder: EncoderSpec | None = None
    head: HeadSpec | None = None
    optimizer: OptimizerSpec | None = None
    prepare: PrepareSpec | None = None
    device: str | None = None
    precision: Precision | None = None

    def __post_init__(self) -> None:
        check_device(self.device or "cpu", self.precision or "full", "float32")


def refuse_own_width(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the content of party.toml sets a width of its own."""
    own = values.get("own")
    encoder = own.get("encoder") if isinstance(own, Mapping) else None
    if isinstance(encoder, Mapping) and "embedding" in encoder:
        raise ConfigError(
            "own.encoder.embedding: the width is agreed with the label holder; leave it out "
            "(least_columns_per_width in the policy bounds it)"
        )


def effective_settings(spec: RunSpec, party: str, own: OwnSettings) -> RunSpec:
    """The settings with which a party trains: its own, and the label holder's where it has none.

    Args:
        spec: The settings as the label holder proposes them.
        party: The party's name.
        own: What it decides itself.

    Returns:
        Settings of which everything but the party's own table is as proposed.
    """
    spec = on_own_device(spec, own)
    keys = ("encoder", "head", "optimizer", "prepare")
    chosen = {key: getattr(own, key) for key in keys if getattr(own, key) is not None}
    if own.encoder is not None:
        width = spec.encoder_of(party).embedding
        chosen["encoder"] = replace(own.encoder, embedding=width)
    table = replace(spec.party.get(party, PartySpec()), **chosen)
    return replace(spec, party={**spec.party, party: table})


def on_own_device(spec: RunSpec, own: OwnSettings) -> RunSpec:
    """The settings on the party's own device, as its party.toml is today."""
    try:
        return replace(spec, device=own.device or "cpu", precision=own.precision or "full")
    except ConfigError as error:
        raise ConfigError(f"own.{error}") from error


def own_seed(home: Path, run: str) -> int:
    """The seed of a run's first weights and dropout: the party's secret, the same at every resume.

    Args:
        home: The party's directory, where its secret is made at the first call.
        run: The run's name.

    Returns:
        256 bits.

    Raises:
        StorageError: If the secret can't be read or written.
    """
    path = home / SECRET
    if not path.exists():
        write_atomically(path, secrets.token_bytes(_NUM_BYTES).hex().encode(), owner_only=True)
    try:
        secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: can't be read as a secret; put it back from a copy") from error
    if len(secret) != _NUM_BYTES:
        raise StorageError(f"{path}: not a secret of {_NUM_BYTES} bytes; put it back from a copy")
    label = b"colonnade first weights\x1f" + run.encode()
    return int.from_bytes(hmac.digest(secret, label, "sha256"), "big")
