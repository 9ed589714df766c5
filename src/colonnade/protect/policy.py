"""A party's own policy: what it takes part in, whoever asks. A TOML file at the party.

Rules are checked before any work is done, as far as their subject is known by then: first on the
settings alone, before an alignment; again with the party's columns and samples.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

from colonnade.core.config import nearest, parse
from colonnade.core.errors import ConfigError, Refused
from colonnade.protect import PROTECTIONS
from colonnade.protect.budget import Budget
from colonnade.protect.protection_spec import ProtectionSpec, SumRules

__all__ = ["Policy", "Terms", "read_policy", "refusal"]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a run asks of one party; None where that is not known yet.

    ``encoder`` is "linear" for every network without a hidden nonlinearity. ``local_steps`` is the
    most that the method takes on one embedding. ``shrinkage`` is the share that weight decay takes
    off the weights in a step; infinite under optimizers that rescale it.
    """

    method: str
    shares_labels: bool
    protections: tuple[ProtectionSpec, ...]
    participants: tuple[str, ...]
    encoder: str
    width: int
    lr: float
    shrinkage: float
    scaled: bool
    dtype: str
    local_steps: int
    columns: tuple[str, ...] | None = None
    # Of the party's rows, how many take part.
    num_rows: int | None = None
    num_rows_used: int = 0
    # Samples in the smallest batch.
    smallest_batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Rules of one party; what is left out is allowed.

    Attributes:
        methods: Methods that it takes part in.
        columns: Columns that may be used.
        require: Kinds of protection without which nothing leaves.
        forbid: Kinds of protection that it does not use.
        least_noise: The least noise multiplier; ``largest_noise`` the largest.
        largest_noise: Above it a run could learn nothing and would spend rows in vain.
        least_clip: The least norm that embeddings are clipped to; ``largest_clip`` the largest.
        largest_clip: See ``least_clip``.
        budget: What all releases of one sample in a run may amount to.
        rows: The largest share of the party's rows.
        shared_labels: Whether a method may rest on labels that are known to all.
        encoders: Kinds of encoders; a network without a hidden nonlinearity counts as "linear".
        dtypes: Types of floating-point numbers.
        unscaled: Whether numeric columns may go into the encoder as they are.
        least_columns_per_width: The least number of columns per number in an embedding.
        largest_lr: The largest learning rate.
        largest_shrinkage: The largest share that weight decay may take off the weights in a step:
            learning rate times weight decay. Weights near zero hide nobody in a sum.
        steps_per_release: The most local steps on one embedding that was sent.
        least_samples: The least number of samples in a batch.
        participants: All who may take part in a run, by name.
        least_parties: The least number of parties in a blinded sum.
        fixed_participants: Whether every blinded sum must be over all parties of the run.
        flat_parts: Whether it takes part in a blinded sum with the same values for every sample.
    """

    methods: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    require: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    least_noise: float | None = None
    largest_noise: float | None = None
    least_clip: float | None = None
    largest_clip: float | None = None
    budget: Budget | None = None
    rows: float = 1.0
    shared_labels: bool = True
    encoders: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    unscaled: bool = True
    least_columns_per_width: float | None = None
    largest_lr: float | None = None
    largest_shrinkage: float | None = None
    steps_per_release: int | None = None
    least_samples: int = 1
    participants: tuple[str, ...] | None = None
    least_parties: int = 2
    fixed_participants: bool = False
    flat_parts: bool = True

    def __post_init__(self) -> None:
        for name in ("require", "forbid"):
            for kind in getattr(self, name):
                if kind not in PROTECTIONS:
                    hint = nearest(kind, list(PROTECTIONS))
                    raise ConfigError(f"{name}: unknown protection '{kind}'{hint}")
        if not 0 < self.rows <= 1:
            raise ConfigError(f"rows: a share above 0 and at most 1, got {self.rows}")
        for name in (
            "least_noise",
            "largest_noise",
            "least_clip",
            "largest_clip",
            "least_columns_per_width",
            "largest_lr",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}: must be above 0 and finite, got {value}")
        shrinkage = self.largest_shrinkage
        if shrinkage is not None and not 0 <= shrinkage < 1:
            raise ConfigError(f"largest_shrinkage: from 0 to below 1, got {shrinkage}")
        for name, least in (("steps_per_release", 1), ("least_samples", 1), ("least_parties", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name}: must be at least {least}, got {value}")

    def check(self, party: str, terms: Terms) -> None:
        """Check what a run asks against every rule whose subject is known.

        Args:
            party: Whose policy this is, for the message.
            terms: What is asked.

        Raises:
            Refused: A rule does not allow it; the message names the rule, and no column that the
                settings did not name.
        """
        self._check_method(party, terms)
        self._check_network(party, terms)
        self._check_protections(party, terms)
        self._check_data(party, terms)

    def sum_rules(self, masked: frozenset[str], told: bytes = b"") -> SumRules:
        """This party's conditions for parts of a sum.

        Args:
            masked: All parties of the run whose tensors can be read in sums alone.
            told: A digest of the settings and the roll as this party was told them.

        Returns:
            What its blinding enforces.
        """
        return SumRules(
            least=self.least_parties,
            everyone=masked if self.fixed_participants else None,
            refuses_flat=not self.flat_parts,
            told=told,
        )

    def _check_method(self, party: str, terms: Terms) -> None:
        if self.methods is not None and terms.method not in self.methods:
            raise refusal(party, "methods", f"'{terms.method}' is not among {list(self.methods)}")
        if terms.shares_labels and not self.shared_labels:
            raise refusal(
                party, "shared_labels", f"'{terms.method}' here rests on labels known to all"
            )
        if self.participants is not None:
            strangers = [name for name in terms.participants if name not in self.participants]
            if strangers:
                raise refusal(
                    party, "participants", f"it takes part in no run with {', '.join(strangers)}"
                )
        most = self.steps_per_release
        if most is not None and terms.local_steps > most:
            raise refusal(
                party,
                "steps_per_release",
                f"'{terms.method}' takes up to {terms.local_steps} local steps on an embedding; it "
                f"allows {most}",
            )

    def _check_network(self, party: str, terms: Terms) -> None:
        if self.encoders is not None and terms.encoder not in self.encoders:
            why = ""
            if terms.encoder == "linear":
                why = ": columns can be found behind secret linear weights"
            raise refusal(
                party,
                "encoders",
                f"'{terms.encoder}' is not among {', '.join(self.encoders)}{why}; set "
                f"party.{party}.encoder to one of these, with a hidden layer and an activation",
            )
        if self.dtypes is not None and terms.dtype not in self.dtypes:
            raise refusal(
                party,
                "dtypes",
                f"'{terms.dtype}' is not among {', '.join(self.dtypes)}; set dtype to one of these",
            )
        if not terms.scaled and not self.unscaled:
            raise refusal(
                party,
                "unscaled",
                f"it scales its columns; set party.{party}.prepare.scale = true",
            )
        if self.largest_lr is not None and terms.lr > self.largest_lr:
            raise refusal(
                party,
                "largest_lr",
                f"a learning rate of {terms.lr:g} is above its largest, {self.largest_lr:g}",
            )
        most = self.largest_shrinkage
        if most is not None and terms.shrinkage > most:
            what = f"learning rate times weight decay, {terms.shrinkage:g}, is above {most:g}"
            if terms.shrinkage == math.inf:
                what = (
                    "under this optimizer any weight decay takes weights to zero where gradients "
                    "are zero; use 'adamw' or 'sgd', or no weight decay"
                )
            raise refusal(party, "largest_shrinkage", what)

    def _check_protections(self, party: str, terms: Terms) -> None:
        kinds = [item.kind for item in terms.protections]
        for kind in self.require:
            if kind not in kinds:
                raise refusal(
                    party, "require", f"it sends nothing without '{kind}'; its protect is {kinds}"
                )
        for kind in self.forbid:
            if kind in kinds:
                raise refusal(party, "forbid", f"it does not use '{kind}'")
        noise = max((item.noise_multiplier for item in terms.protections), default=0.0)
        if self.least_noise is not None and noise < self.least_noise:
            raise refusal(
                party, "least_noise", f"noise {noise:g} is below its least, {self.least_noise:g}"
            )
        if self.largest_noise is not None and noise > self.largest_noise:
            raise refusal(
                party,
                "largest_noise",
                f"noise {noise:g} is above its largest, {self.largest_noise:g}",
            )
        for item in terms.protections:
            norm = item.clipping_norm
            if norm is None:
                continue
            if self.least_clip is not None and norm < self.least_clip:
                raise refusal(
                    party, "least_clip", f"clip {norm:g} is below its least, {self.least_clip:g}"
                )
            if self.largest_clip is not None and norm > self.largest_clip:
                raise refusal(
                    party,
                    "largest_clip",
                    f"clip {norm:g} is above its largest, {self.largest_clip:g}",
                )
        if self.budget is not None and noise == 0:
            raise refusal(
                party, "budget", "without 'perturb' among its protect, nothing bounds what is spent"
            )
        for item in terms.protections:
            least = item.least_summands
            if least is not None and least < self.least_parties:
                raise refusal(
                    party,
                    "least_parties",
                    f"a sum of {least} parties hides too little; set least = {self.least_parties} "
                    f"in '{item.kind}' of everybody's protect",
                )

    def _check_data(self, party: str, terms: Terms) -> None:
        if terms.columns is not None:
            self._check_columns(party, terms.columns, terms.width)
        if terms.num_rows is not None and terms.num_rows_used > self.rows * terms.num_rows:
            raise refusal(
                party,
                "rows",
                f"{terms.num_rows_used} of its {terms.num_rows} rows would take part; it allows a "
                f"share of {self.rows:g}",
            )
        if terms.smallest_batch is not None and terms.smallest_batch < self.least_samples:
            raise refusal(
                party,
                "least_samples",
                f"a batch of this run has {terms.smallest_batch} samples; it wants at least "
                f"{self.least_samples}; use a larger batch_size or leave out small groups",
            )

    def _check_columns(self, party: str, columns: tuple[str, ...], width: int) -> None:
        self.check_named(party, columns)
        least = self.least_columns_per_width
        if least is not None and len(columns) < least * width:
            raise refusal(
                party,
                "least_columns_per_width",
                f"an embedding of {width} numbers is too wide for the columns that it would use; "
                f"it wants {least:g} columns a number: a narrower embedding, or more columns",
            )

    def check_named(
        self, party: str, columns: tuple[str, ...], known: tuple[str, ...] | None = None
    ) -> None:
        """Refuse columns that may not be used or are not there; the message lists no others.

        Args:
            party: Whose policy this is.
            columns: The columns that are asked for.
            known: The columns that there are; None before the table is read.

        Raises:
            Refused: One of them may not be used.
        """
        others = [
            name
            for name in columns
            if (self.columns is not None and name not in self.columns)
            or (known is not None and name not in known)
        ]
        if others:
            raise refusal(
                party,
                "columns",
                f"{others} may not be used; whoever runs '{party}' knows which may, for "
                f"party.{party}.columns",
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


def refusal(party: str, rule: str, what: str) -> Refused:
    """The refusal of a party by a rule of its policy."""
    return Refused(f"party '{party}' refuses by its policy, rule '{rule}': {what}", party=party)
