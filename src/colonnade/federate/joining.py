"""A party's way into a federation, and how its identity stays fresh."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, DataError, IdentityRefused, RunError
from colonnade.data.blocks import as_ids
from colonnade.data.id_columns import read_header, read_id_columns
from colonnade.federate.certificates import Now, Reason, key_pem, new_key, now
from colonnade.federate.enrolment import request_enrolment
from colonnade.federate.home import (
    PARTY,
    PartySettings,
    make_home,
    own_identity,
    read_party,
    write_party,
)
from colonnade.federate.identities import IDENTITY, is_renewal_due, save_identity
from colonnade.federate.invitations import hashed, read_invitation
from colonnade.federate.policy import read_policy
from colonnade.federate.renewal import renew
from colonnade.files import write_atomically
from colonnade.methods import METHODS

__all__ = ["DataSummary", "Joined", "check_data", "join", "renew_if_due"]


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """What a party's file holds, in numbers and column names only."""

    num_rows: int
    num_duplicates: int
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A party that belongs: its directory, and whether it enrolled just now or before."""

    home: Path
    settings: PartySettings
    data: DataSummary
    is_new: bool


def check_data(path: Path, id_column: str) -> DataSummary:
    """Read a file's header and its id column; nothing of it goes anywhere."""
    header = read_header(path)
    if id_column not in header:
        raise DataError(f"{path.name}: no column '{id_column}'; it has: {', '.join(header[:12])}")
    columns = tuple(name for name in header if name != id_column)
    if not columns:
        raise DataError(f"{path.name}: no columns besides the id '{id_column}'")
    pieces = [piece for (piece,) in read_id_columns(path, [id_column], where="data")]
    if not sum(map(len, pieces)):
        raise DataError(f"{path.name}: no rows; give it at least one")
    ids = as_ids(pd.concat(pieces), f"id column '{id_column}' of {path.name}")
    return DataSummary(
        num_rows=len(ids),
        num_duplicates=int(pd.Series(ids).duplicated().sum()),
        columns=columns,
    )


def join(
    invitation_file: Path,
    *,
    data: Path,
    id_column: str,
    home: Path | None = None,
    policy: Path | None = None,
    health: str | None = None,
    now: Now = now,
) -> Joined:
    """Enrol with an invitation and write the party's directory.

    All that can be checked at home is checked first: an invitation is not spent on a wrong path.
    """
    invitation = read_invitation(invitation_file)
    summary = check_data(data, id_column)
    if policy is not None:
        _check_policy(policy, (id_column, *summary.columns))
    home = home or Path(invitation.party)
    settings = PartySettings(
        name=invitation.party,
        label_holder=invitation.label_holder,
        hub=invitation.address,
        data=data.resolve(),
        id=id_column,
        policy=None if policy is None else policy.resolve(),
        health=health or PartySettings.health,
        invitation=hashed(invitation.token),
    )
    if (home / PARTY).is_file():
        # What was set there by hand stays.
        settings = replace(settings, link=read_party(home).link)
    if _is_joined(home, settings):
        own_identity(home, now=now)
        write_party(home, settings)
        return Joined(home=home, settings=settings, data=summary, is_new=False)
    if now() > invitation.expiry:
        raise IdentityRefused(
            f"{invitation_file}: this invitation expired on {invitation.expiry:%Y-%m-%d %H:%M} "
            "UTC; ask the label holder for a new one",
            reason=Reason.EXPIRED_INVITATION,
        )
    make_home(home)
    # Kept until the answer is: whoever asks again with this key gets the same answer again.
    pending = home / f"joining-{hashed(invitation.token)[:12]}.key.pem"
    if not pending.exists():
        write_atomically(pending, key_pem(new_key()), owner_only=True)
    try:
        identity = request_enrolment(invitation, pending.read_bytes(), now=now)
    except IdentityRefused:
        # A key that was refused is of no use to anybody.
        pending.unlink()
        if not any(home.iterdir()):
            home.rmdir()
        raise
    save_identity(home, identity)
    write_party(home, settings)
    pending.unlink()
    return Joined(home=home, settings=settings, data=summary, is_new=True)


def _check_policy(path: Path, header: tuple[str, ...]) -> None:
    """Refuse a policy that can't be read, or that names what neither table nor library has."""
    try:
        policy = read_policy(path)
    except ConfigError as error:
        raise ConfigError(f"--policy: {error}") from error
    named = {
        "columns": (policy.columns or (), header, "column of the table"),
        "key": (policy.key or (), header, "column of the table"),
        "methods": (policy.methods or (), tuple(METHODS), "method"),
    }
    for key, (names, known, what) in named.items():
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"--policy: {path}: {key}: no {what} '{name}'{nearest(name, known)}"
                )


def _is_joined(home: Path, settings: PartySettings) -> bool:
    """Whether this invitation has been used here; another party's directory is refused."""
    if home.exists() and not home.is_dir():
        raise ConfigError(f"--home: {home} is a file; name a directory")
    if not (home / PARTY).exists():
        return False
    there = read_party(home)
    if (there.name, there.label_holder) != (settings.name, settings.label_holder):
        raise ConfigError(
            f"--home: {home} is the directory of '{there.name}' in the federation of "
            f"'{there.label_holder}'; name another"
        )
    return there.invitation == settings.invitation and (home / IDENTITY).exists()


def renew_if_due(home: Path, *, now: Now = now) -> bool:
    """Renew the identity when a third of its life is left; says whether it is a new one.

    A hub that does not answer is no harm yet: there is time until the old one expires.
    """
    identity = own_identity(home, now=now)
    if not is_renewal_due(identity.certificate, now()):
        return False
    try:
        renewed = renew(identity, read_party(home).hub, now=now)
    except RunError as error:
        log = logging.getLogger(__name__)
        log.warning("renewal put off", extra={"fields": {"because": str(error)}})
        return False
    save_identity(home, renewed)
    return True
