"""A protection's settings: the one interface by which a run checks, makes and reads protections.

To add a protection: a file of its own with its settings (a ``ProtectionSpec``) and what stands at
the door (a ``core.doors.Protection``), one line in the registry (``protect/__init__.py``), a docs
page.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from colonnade.core.errors import ConfigError
from colonnade.core.method import Needs
from colonnade.core.protection import PeopleAccount, Protection
from colonnade.core.releases import ABOUT_COLUMNS, Kind
from colonnade.core.sums import Sums
from colonnade.protect.budget import Budget
from colonnade.protect.signatures import Signer, Verifier

__all__ = [
    "Place",
    "ProtectionSpec",
    "Setting",
    "Side",
    "SumRules",
    "check_above_zero",
    "check_chain",
    "check_share",
]

Side = Literal["party", "label_holder"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The run in which a protection is to stand, as far as it may depend on it.

    Attributes:
        method: The method's name.
        needs: What the method needs.
        combine: How the fusion model combines embeddings.
        label_holder: The label holder's name.
        chains: The protections of every party, the label holder's own block included.
    """

    method: str
    needs: Needs
    combine: str
    label_holder: str
    chains: Mapping[str, Sequence[ProtectionSpec]]

    @property
    def across(self) -> tuple[str, ...]:
        """The parties across a link, all but the label holder's own block."""
        return tuple(name for name in self.chains if name != self.label_holder)


@dataclass(frozen=True, kw_only=True)
class SumRules:
    """A party's own conditions for parts of a sum.

    Attributes:
        least: How many parties a sum must have at least.
        everyone: The parties that every sum must have, and no other; None allows any.
        refuses_flat: Whether the party stays out of a sum in which its own part is the same for
            every sample: it would hide nobody.
        told: A digest of the settings and the roll as this party was told them. Masks cancel only
            among parties that were told the same.
    """

    least: int = 2
    everyone: frozenset[str] | None = None
    refuses_flat: bool = False
    told: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Whose door a protection stands at, and what it finds there.

    Attributes:
        owner: The participant's name.
        encoder: The party's network; None at the label holder.
        seed: The run's seed, which everybody knows.
        budget: What the party's releases may amount to.
        account: The account of people that the party's releases are charged to.
        secret: Given in tests only: a protection makes its own.
        signer: Makes the party's identity, for protections that need one.
        verifier: Makes what the party knows of the others' identities.
        sums: The party's own conditions for parts of a sum.
    """

    owner: str
    encoder: nn.Module | None = None
    seed: int = 0
    budget: Budget | None = None
    account: PeopleAccount | None = None
    secret: bytes | None = None
    signer: Callable[[], Signer] | None = None
    verifier: Callable[[], Verifier] | None = None
    sums: SumRules = field(default_factory=SumRules)


class ProtectionSpec(ABC):
    """A protection's settings, and what a run must know of it.

    Attributes:
        kind: Its name in settings.
        covers: The kinds of tensors that it changes.
        sides: Whose doors it may stand at.
        changes_form: Whether what leaves has another form: at most one such, and the last.
        is_common: Whether all parties across a link must have the same.
        keeps_account: Whether it accounts for the privacy that releases cost.
    """

    kind: ClassVar[str]
    covers: ClassVar[frozenset[Kind]] = ABOUT_COLUMNS
    sides: ClassVar[frozenset[Side]] = frozenset({"party"})
    changes_form: ClassVar[bool] = False
    is_common: ClassVar[bool] = False
    keeps_account: ClassVar[bool] = False

    @abstractmethod
    def stand_at(self, place: Place) -> Protection:
        """Make the end where tensors leave.

        Args:
            place: Whose door, and what is there.

        Returns:
            What stands at the door.

        Raises:
            ConfigError: If it can't stand there.
        """

    def check(self, setting: Setting) -> None:  # noqa: B027
        """Check it against the run, before training.

        Args:
            setting: The run.

        Raises:
            ConfigError: If it does not fit the method or the others.
        """

    def read(self, value: Tensor) -> Tensor:
        """At the other end: undo a change of form.

        Args:
            value: The tensor as it came.

        Returns:
            The tensor as the method expects it.

        Raises:
            ProtocolError: If it is not of that form.
        """
        return value

    def beside_labels(self) -> ProtectionSpec | None:
        """What the label holder's own block has where the parties across a link have this.

        Returns:
            None if nothing.
        """
        return None

    def sums(self, dtype: torch.dtype, masked: frozenset[str]) -> Sums | None:
        """How the label holder adds up tensors that left as parts of sums.

        Args:
            dtype: Of the sum that a method gets.
            masked: The parties whose tensors can't be read one by one.

        Returns:
            None if every tensor can be read by itself.
        """
        return None

    @property
    def noise_multiplier(self) -> float:
        """The noise's deviation in units of what one sample can change; 0 without noise."""
        return 0.0

    @property
    def clipping_norm(self) -> float | None:
        """The norm that every sample's embedding is clipped to; None without clipping."""
        return None

    @property
    def least_summands(self) -> int | None:
        """How many parties a sum must have, where only sums can be read; None elsewhere."""
        return None

    @property
    def needs_identity(self) -> bool:
        """Whether parties sign what they send each other under it."""
        return False


def check_chain(chain: Sequence[ProtectionSpec]) -> None:
    """Raise ConfigError unless these protections can follow each other."""
    for place, item in enumerate(chain):
        if any(item.kind == other.kind for other in chain[:place]):
            raise ConfigError(f"protect: '{item.kind}' more than once; once is enough")
    forms = [item.kind for item in chain if item.changes_form]
    if len(forms) > 1:
        raise ConfigError(
            f"protect: {' and '.join(repr(kind) for kind in forms)} each change the form in which "
            "embeddings leave, and packed ones can't be added up; leave out all but one"
        )
    if forms and not chain[-1].changes_form:
        raise ConfigError(f"protect: '{forms[0]}' comes last; it changes the form")


def check_above_zero(name: str, value: float) -> None:
    """Raise ConfigError unless a setting is a number above 0."""
    if not value > 0 or not math.isfinite(value):
        raise ConfigError(f"{name}: must be above 0, got {value}")


def check_share(name: str, value: float) -> None:
    """Raise ConfigError unless a setting is a share above 0."""
    if not 0 < value <= 1:
        raise ConfigError(f"{name}: a share above 0 and at most 1, got {value}")
