"""How a party joins a federation with an invitation, and renews its identity in time."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from colonnade.core.config import nearest
from colonnade.core.errors import ConfigError, DataError, IdentityRefused, RunError
from colonnade.data.blocks import as_ids
from colonnade.data.id_columns import read_header, read_id_columns
from colonnade.federate.certificates import Now, Reason, key_pem, new_key, now, refused
from colonnade.federate.enrolment import request_enrolment
from colonnade.federate.identities import IDENTITY, is_renewal_due, save_identity
from colonnade.federate.invitations import hashed, read_invitation
from colonnade.federate.party_home import (
    PARTY,
    PartySettings,
    make_home,
    own_identity,
    read_party,
    write_party,
)
from colonnade.federate.party_policy import read_policy
from colonnade.federate.renewal import renew
from colonnade.files import write_atomically
from colonnade.methods import METHODS

__all__ = ["DataSummary", "Joined", "check_data", "join", "renew_if_due"]


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """A party's table in numbers and column names only."""

    num_rows: int
    num_duplicates: int
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A party that has joined; ``is_new`` says whether it enrolled just now or before."""

    home: Path
    settings: PartySettings
    data: DataSummary
    is_new: bool


def check_data(path: Path, id_column: str) -> DataSummary:
    """Check a table's header and id column; both stay here."""
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
    num_duplicates = int(pd.Series(ids).duplicated().sum())
    return DataSummary(num_rows=len(ids), num_duplicates=num_duplicates, columns=columns)


def join(
    invitation_file: Path,
    *,
    data: Path,
    id_column: str,
    home: Path | None = None,
    policy: Path | None = None,
    health: str | None = None,
    allow_unprotected: bool = False,
    common_seed: bool = False,
    now: Now = now,
) -> Joined:
    """Enrol with an invitation and write the party's directory.

    Everything that can be checked here is checked first, so that no mistake spends the invitation.
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
        serving=invitation.serving,
        data=data.resolve(),
        id=id_column,
        policy=None if policy is None else policy.resolve(),
        health=health or PartySettings.health,
        invitation=hashed(invitation.token),
        allow_unprotected=allow_unprotected,
        common_seed=common_seed,
    )
    if (home / PARTY).is_file():
        # Link and own settings that somebody wrote there stay.
        there = read_party(home)
        settings = replace(settings, link=there.link, own=there.own, features=there.features)
    # Kept until the answer is kept: a party that asks again with this key gets the same answer.
    pending = home / f"joining-{hashed(invitation.token)[:12]}.key.pem"
    if _is_joined(home, settings):
        own_identity(home, now=now)
        write_party(home, settings)
        pending.unlink(missing_ok=True)
        return Joined(home=home, settings=settings, data=summary, is_new=False)
    if now() > invitation.expiry:
        raise refused(
            Reason.EXPIRED_INVITATION,
            f"{invitation_file}: this invitation expired on {invitation.expiry:%Y-%m-%d %H:%M} "
            "UTC; ask the label holder for a new one",
        )
    make_home(home)
    if not pending.exists():
        write_atomically(pending, key_pem(new_key()), owner_only=True)
    try:
        identity = request_enrolment(invitation, pending.read_bytes(), now=now)
    except IdentityRefused as error:
        if error.reason == Reason.FOREIGN:
            # No hub of this federation said so. One that answers later may know the key already.
            raise
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
    """Refuse a policy that can't be read, or that names an unknown column or method."""
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
    """Whether this invitation was used here; a directory of another party is refused."""
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
    """Renew the identity when a third of its life is left; returns whether it did.

    A hub that does not answer is asked again later: the old identity is still valid.
    """
    identity = own_identity(home, now=now)
    # Kept until the answer is kept: where certificates are signed by hand, the same key asks again.
    pending = home / "renewing.key.pem"
    if not is_renewal_due(identity.certificate, now()):
        pending.unlink(missing_ok=True)
        return False
    if not pending.exists():
        write_atomically(pending, key_pem(new_key()), owner_only=True)
    try:
        renewed = renew(identity, read_party(home).hub, own_key=pending.read_bytes(), now=now)
    except IdentityRefused as error:
        if error.reason != Reason.FOREIGN:
            pending.unlink()
        raise
    except RunError as error:
        log = logging.getLogger(__name__)
        log.warning("renewal put off", extra={"fields": {"because": str(error)}})
        return False
    save_identity(home, renewed)
    pending.unlink()
    return True
