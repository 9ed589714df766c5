"""What a party allows, whoever asks: a file of its own, read at the start and on SIGHUP."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from colonnade.align.ids import Duplicates
from colonnade.align.terms import AlignPolicy
from colonnade.core.config import parse
from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.federate.federation import read_toml
from colonnade.models import CustomSpec
from colonnade.run.spec import RunSpec

__all__ = ["PartyPolicy", "read_policy"]


@dataclass(frozen=True, kw_only=True)
class PartyPolicy:
    """Content of a party's policy file.

    ``methods`` and ``columns`` that may be used; all if not given. ``key`` are the id columns,
    where ids have several parts; ``duplicates`` says what to do with an id that stands twice
    ("refuse" or "keep_first"). ``custom_encoders`` are import paths: a class that is named in
    settings from the network is imported only if it stands here.
    """

    methods: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    key: tuple[str, ...] | None = None
    duplicates: Duplicates = "refuse"
    custom_encoders: tuple[str, ...] = ()
    align: AlignPolicy = field(default_factory=AlignPolicy)

    def check(self, spec: RunSpec, party: str) -> None:
        """Refuse settings that this party does not allow, before anything of them is done."""
        method = spec.method.info.name
        if self.methods is not None and method not in self.methods:
            raise ProtocolError(
                f"party '{party}' does not allow method '{method}'; its policy allows "
                f"{list(self.methods)}"
            )
        encoder = spec.encoder_of(party)
        if isinstance(encoder, CustomSpec) and encoder.module not in self.custom_encoders:
            raise ProtocolError(
                f"party '{party}' imports no encoder that its own policy does not name "
                f"('{encoder.module}'); have it added to custom_encoders there"
            )
        wanted = spec.party[party].columns if party in spec.party else None
        if self.columns is not None and wanted is not None:
            refused = sorted(set(wanted) - set(self.columns))
            if refused:
                raise ProtocolError(
                    f"party '{party}' does not allow the columns {refused}; have its policy "
                    "changed there, or leave them out"
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
