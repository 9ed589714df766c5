"""A party's own policy: what it takes part in, whoever asks. A TOML file at the party."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from colonnade.core.config import nearest, parse
from colonnade.core.errors import ConfigError, Refused
from colonnade.protect.specs import PROTECTIONS, Budget, Perturb, ProtectionSpec

__all__ = ["Policy", "Terms", "read_policy"]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a run asks of one party."""

    method: str
    shares_labels: bool
    columns: tuple[str, ...]
    protections: tuple[ProtectionSpec, ...]
    # Of the party's rows, how many take part.
    num_rows: int
    num_rows_used: int


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Rules of one party; what is left out is allowed.

    ``methods`` and ``columns`` are those that may be used; ``require`` and ``forbid`` name kinds of
    protection; ``least_noise`` is the least noise multiplier; ``budget`` what all releases of one
    sample in a run may amount to; ``rows`` the largest share of the party's rows;
    ``shared_labels`` whether a method may rest on labels that are known to all.
    """

    methods: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    require: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    least_noise: float | None = None
    budget: Budget | None = None
    rows: float = 1.0
    shared_labels: bool = True

    def __post_init__(self) -> None:
        for name in ("require", "forbid"):
            for kind in getattr(self, name):
                if kind not in PROTECTIONS:
                    hint = nearest(kind, list(PROTECTIONS))
                    raise ConfigError(f"{name}: unknown protection '{kind}'{hint}")
        if not 0 < self.rows <= 1:
            raise ConfigError(f"rows: a share above 0 and at most 1, got {self.rows}")
        if self.least_noise is not None and not self.least_noise > 0:
            raise ConfigError(f"least_noise: must be above 0, got {self.least_noise}")

    def check(self, party: str, terms: Terms) -> None:
        """Raise Refused, naming the rule, unless the terms are allowed."""
        kinds = [item.kind for item in terms.protections]
        if self.methods is not None and terms.method not in self.methods:
            raise _refusal(party, "methods", f"'{terms.method}' is not among {list(self.methods)}")
        if terms.shares_labels and not self.shared_labels:
            raise _refusal(
                party, "shared_labels", f"'{terms.method}' here rests on labels known to all"
            )
        self._check_columns(party, terms.columns)
        for kind in self.require:
            if kind not in kinds:
                raise _refusal(
                    party, "require", f"it sends nothing without '{kind}'; its protect is {kinds}"
                )
        for kind in self.forbid:
            if kind in kinds:
                raise _refusal(party, "forbid", f"it does not use '{kind}'")
        noise = max((p.noise for p in terms.protections if isinstance(p, Perturb)), default=0.0)
        if self.least_noise is not None and noise < self.least_noise:
            raise _refusal(
                party, "least_noise", f"noise {noise:g} is below its least, {self.least_noise:g}"
            )
        if self.budget is not None and noise == 0:
            raise _refusal(
                party, "budget", "without 'perturb' among its protect, nothing bounds what is spent"
            )
        if terms.num_rows_used > self.rows * terms.num_rows:
            raise _refusal(
                party,
                "rows",
                f"{terms.num_rows_used} of its {terms.num_rows} rows would take part; it allows a "
                f"share of {self.rows:g}",
            )

    def _check_columns(self, party: str, columns: Iterable[str]) -> None:
        if self.columns is None:
            return
        others = [name for name in columns if name not in self.columns]
        if others:
            raise _refusal(
                party,
                "columns",
                f"{others} may not be used; set party.{party}.columns to some of "
                f"{list(self.columns)}",
            )


def read_policy(path: Path) -> Policy:
    """A policy from its file; every mistake is named by the file and the key's path."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give the path of a party's policy (TOML)")
    try:
        return parse(Policy, tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _refusal(party: str, rule: str, what: str) -> Refused:
    return Refused(f"party '{party}' refuses by its policy, rule '{rule}': {what}", party=party)
