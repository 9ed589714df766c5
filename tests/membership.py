"""Federations for tests of who belongs: real authorities, and a clock that a test sets."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path

from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.certificates import key_pem, new_key, now, signing_request
from colonnade.federate.federation_directory import FederationDirectory, FederationSettings
from colonnade.federate.invitations import enrol, invite


@dataclass
class SetClock:
    """A clock that stands until a test moves it."""

    moment: datetime.datetime = field(default_factory=lambda: now().replace(microsecond=0))

    def __call__(self) -> datetime.datetime:
        return self.moment

    def advance(self, **duration: float) -> None:
        self.moment += datetime.timedelta(**duration)


def make_federation(directory: Path, clock: SetClock, *, name: str = "bank") -> FederationDirectory:
    settings = FederationSettings(name=name, address="127.0.0.1:7443", enrolment="127.0.0.1:7444")
    return FederationDirectory.create(directory, settings, now=clock)


def make_member(federation: FederationDirectory, name: str, *, replace: bool = False) -> Identity:
    """Invite and enrol a party without a network."""
    file = federation.directory.parent / f"{name}-{new_key().private_numbers().private_value}.inv"
    invitation = invite(federation, name, file, replace_member=replace)
    key = new_key()
    certificate = enrol(federation, invitation.token, signing_request(key, name))
    return Identity(
        name=name,
        authority=federation.authority_certificate,
        certificate=certificate,
        key=key_pem(key),
    )
