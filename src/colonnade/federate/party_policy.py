"""A party's policy: the file with what it allows, read at the start and on SIGHUP.

An agent without a policy file has the defaults of ``PartyPolicy``, and so has every key that a
file leaves out. They are stricter than those of a party in one process, because here somebody else
asks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from colonnade.align.ids import Duplicates
from colonnade.align.terms import AlignPolicy
from colonnade.core.config import nearest, parse
from colonnade.core.errors import ConfigError, ProtocolError
from colonnade.federate.federation_directory import read_toml
from colonnade.federate.party_limits import Limits
from colonnade.federate.query_counts import Queries
from colonnade.models import ENCODERS, CustomSpec
from colonnade.protect.policy import Policy, Terms, refusal
from colonnade.run.spec import RunSpec

__all__ = ["PartyPolicy", "read_policy"]

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class PartyPolicy(Policy):
    """Content of an agent's policy file: the rules of any party, and rules for an agent.

    ``releases_per_row`` is how often something of one person may leave, over all runs and
    predictions for good. ``largest_gradient`` is the norm that every sample's incoming gradient is
    shortened to. ``tells`` are aggregates over at least a hundred people that the label holder is
    told with predictions: "far" (how many rows have values far outside the training range) and
    "drift" (how far inputs and embeddings have moved).

    ``key`` are the id columns, where ids have several parts. ``duplicates`` says what to do with
    an id that stands twice ("refuse" or "keep_first"). ``custom_encoders`` are import paths: the
    agent imports a class that settings from the network name only if it is listed here. ``peers``
    are other parties' public signing keys, by name, which blinding needs; they must not have come
    through the label holder. ``queries`` bounds how often people may be asked for. With
    ``cache_seconds`` a label holder may use an embedding that was released once again, for so long;
    what it already has can't be taken back, so this is a consent and not a lock.
    """

    # Stricter than in one process. A linear encoder hides nothing behind secret weights (blind
    # source separation finds columns), and float64 leaves all digits of what it does not hide.
    encoders: tuple[str, ...] | None = tuple(kind for kind in ENCODERS if kind != "linear")
    dtypes: tuple[str, ...] | None = ("float32",)
    unscaled: bool = False
    shared_labels: bool = False
    largest_lr: float | None = 1.0
    largest_shrinkage: float | None = 1e-4
    fixed_participants: bool = True
    flat_parts: bool = False

    releases_per_row: int | None = 1000
    largest_gradient: float | None = 10.0
    tells: tuple[Literal["far", "drift"], ...] = ()
    key: tuple[str, ...] | None = None
    duplicates: Duplicates = "refuse"
    custom_encoders: tuple[str, ...] = ()
    peers: Mapping[str, str] = field(default_factory=dict)
    align: AlignPolicy = field(default_factory=AlignPolicy)
    limits: Limits = field(default_factory=Limits)
    queries: Queries = field(default_factory=Queries)
    cache_seconds: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.releases_per_row is not None and self.releases_per_row < 1:
            raise ConfigError(f"releases_per_row: at least 1, got {self.releases_per_row}")
        if self.largest_gradient is not None and not 0 < self.largest_gradient < math.inf:
            raise ConfigError(f"largest_gradient: above 0 and finite, got {self.largest_gradient}")
        if not 0 <= self.cache_seconds < math.inf:
            raise ConfigError(f"cache_seconds: at least 0 and finite, got {self.cache_seconds}")
        for kind in self.encoders or ():
            if kind not in ENCODERS:
                raise ConfigError(f"encoders: unknown kind '{kind}'{nearest(kind, list(ENCODERS))}")
        for name, key in self.peers.items():
            if not _KEY.fullmatch(key):
                raise ConfigError(
                    f"peers.{name}: 64 hexadecimal digits, as 'colonnade party key' prints them "
                    "there"
                )

    def check_settings(
        self, spec: RunSpec, party: str, terms: Terms, *, allow_unprotected: bool
    ) -> None:
        """Check settings by themselves, before the table is read and before an alignment.

        Args:
            spec: The settings.
            party: Whose policy this is.
            terms: What the settings ask of it.
            allow_unprotected: Whether embeddings may leave as they are.

        Raises:
            Refused: A rule does not allow it; the message names the rule.
            ProtocolError: The settings name a class that the policy does not list.
        """
        self.check_encoder(spec, party)
        self.check(party, terms)
        wanted = spec.party[party].columns if party in spec.party else None
        named = (*(wanted or ()), *spec.prepare_of(party).categorical_columns)
        self.check_named(party, named)
        self.limits.check(
            party,
            {
                "max_threads": spec.threads,
                "max_exchanges": spec.stop.exchanges,
                "max_local_steps": terms.local_steps,
            },
        )
        hides = any(
            item.noise_multiplier or item.least_summands is not None for item in terms.protections
        )
        if not hides and not allow_unprotected:
            raise refusal(
                party,
                "allow_unprotected",
                f"no protection that hides anything stands in party.{party}.protect; add 'perturb' "
                "or 'blind', or have allow_unprotected = true set in its party.toml",
            )

    def check_encoder(self, spec: RunSpec, party: str) -> None:
        """Refuse an encoder class that the policy does not list, before it is imported."""
        encoder = spec.encoder_of(party)
        if isinstance(encoder, CustomSpec) and encoder.module not in self.custom_encoders:
            raise ProtocolError(
                f"party '{party}' imports no encoder that its own policy does not name "
                f"('{encoder.module}'); have it added to custom_encoders there"
            )

    def columns_of(self, spec: RunSpec, party: str) -> tuple[str, ...] | None:
        """The columns that a run uses: those in its settings, or all that the policy allows."""
        wanted = spec.party[party].columns if party in spec.party else None
        return self.columns if wanted is None else wanted


def read_policy(path: Path | None) -> PartyPolicy:
    """A policy from its file; without a file, the defaults."""
    if path is None:
        return PartyPolicy()
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; a party without its policy does not start")
    try:
        return parse(PartyPolicy, read_toml(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
