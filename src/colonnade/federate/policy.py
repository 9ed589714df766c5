"""What a party allows, whoever asks: a file of its own, read at the start and on SIGHUP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from colonnade.align.ids import Duplicates
from colonnade.align.terms import AlignPolicy
from colonnade.core.config import parse
from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.federate.federation import read_toml
from colonnade.models import CustomSpec
from colonnade.protect.policy import Policy
from colonnade.run.spec import RunSpec

__all__ = ["PartyPolicy", "read_policy"]

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class PartyPolicy(Policy):
    """Content of an agent's policy file: the rules of any party, and what an agent needs besides.

    ``key`` are the id columns, where ids have several parts; ``duplicates`` says what to do with
    an id that stands twice ("refuse" or "keep_first"). ``custom_encoders`` are import paths: a
    class that is named in settings from the network is imported only if it stands here. ``peers``
    are the public signing keys of other parties, by name, which blinding needs: they must have
    come some other way than through the label holder.
    """

    key: tuple[str, ...] | None = None
    duplicates: Duplicates = "refuse"
    custom_encoders: tuple[str, ...] = ()
    peers: Mapping[str, str] = field(default_factory=dict)
    align: AlignPolicy = field(default_factory=AlignPolicy)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, key in self.peers.items():
            if not _KEY.fullmatch(key):
                raise ConfigError(
                    f"peers.{name}: 64 hexadecimal digits, as 'colonnade party key' prints them "
                    "there"
                )

    def check_encoder(self, spec: RunSpec, party: str) -> None:
        """Refuse a class that this party does not import, before anything is made of it."""
        encoder = spec.encoder_of(party)
        if isinstance(encoder, CustomSpec) and encoder.module not in self.custom_encoders:
            raise ProtocolError(
                f"party '{party}' imports no encoder that its own policy does not name "
                f"('{encoder.module}'); have it added to custom_encoders there"
            )

    def columns_of(self, spec: RunSpec, party: str) -> tuple[str, ...] | None:
        """Which columns a run uses: those agreed on, or all that are allowed."""
        wanted = spec.party[party].columns if party in spec.party else None
        return self.columns if wanted is None else wanted


def read_policy(path: Path | None) -> PartyPolicy:
    """A policy from its file; without a file, everything but custom encoders is allowed."""
    if path is None:
        return PartyPolicy()
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; a party without its policy does not start")
    try:
        return parse(PartyPolicy, read_toml(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
