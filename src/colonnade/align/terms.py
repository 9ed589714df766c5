"""Terms that participants agree on before an alignment, and the policy of each."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from colonnade.align.ids import Duplicates
from colonnade.align.rules import DEFAULT_KEY, KeyPart
from colonnade.core.config import dump
from colonnade.core.errors import ConfigError, ProtocolError

__all__ = ["AlignPolicy", "AlignSpec", "Mode"]

Mode = Literal["intersection", "union"]


@dataclass(frozen=True, kw_only=True)
class AlignPolicy:
    """A party's limits of guessing.

    Every id in another participant's list may be a guess. So a party admits lists of ``max_ids``
    per participant, and ``max_alignments`` alignments in ``per_days`` days.
    """

    max_ids: int = 10_000_000
    max_alignments: int = 10
    per_days: int = 30

    def __post_init__(self) -> None:
        for name in ("max_ids", "max_alignments", "per_days"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")

    def check_days(self, days: list[int], today: int, party: str) -> list[int]:
        """The days that still count, and today; too many are refused."""
        recent = [day for day in days if day > today - self.per_days]
        if len(recent) >= self.max_alignments:
            raise ProtocolError(
                f"party '{party}' allows {self.max_alignments} alignments in {self.per_days} days "
                f"and has had {len(recent)}; wait, or have its policy changed there"
            )
        return [*recent, today]

    def check_sizes(self, sizes: Mapping[str, int], party: str) -> None:
        """Refuse lists that are too long."""
        for name, size in sizes.items():
            if size > self.max_ids:
                raise ProtocolError(
                    f"party '{party}' allows lists of {self.max_ids} ids, and '{name}' has {size}; "
                    "send fewer, or have its policy changed there"
                )


@dataclass(frozen=True, kw_only=True)
class AlignSpec:
    """How to align: terms that all participants agree on, and settings of each one's own.

    ``salt`` belongs to one federation, so that the same ids in two federations can't be linked.
    With ``labelled_only``, samples without a label are left out. Each participant's own are
    ``columns`` (id columns, where a key has several parts), ``duplicates``, ``policy`` and
    ``counts``, the directory of its count of alignments if that is not beside its table.
    """

    salt: str
    mode: Mode = "union"
    labelled_only: bool = True
    key: tuple[KeyPart, ...] = DEFAULT_KEY
    duplicates: Duplicates = "refuse"
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    policy: AlignPolicy = field(default_factory=AlignPolicy)
    counts: Path | None = None

    def __post_init__(self) -> None:
        if len(self.salt) < 16:
            raise ConfigError(
                f"salt: at least 16 random characters, the same at every party of this "
                f"federation and of no other, got {len(self.salt)}; for example "
                f"{secrets.token_hex(16)}"
            )
        if not self.key:
            raise ConfigError("key: needs at least one part")

    @property
    def agreed(self) -> str:
        """The terms that must be the same everywhere, without the salt, as text."""
        content = {"mode": self.mode, "labelled_only": self.labelled_only, "key": dump(self.key)}
        return json.dumps(content, sort_keys=True)
