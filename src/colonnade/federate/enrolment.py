"""Enrolment over the network: both sides of it.

Whoever enrols has no certificate yet. TLS shows the hub's only, and the party checks it against the
authority that its invitation pins; a token admits the party, once. The party's key is made at home
and stays there: what travels is a request that is signed with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import grpc

from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.calls import VERSION, ask, handler
from colonnade.federate.certificates import Now, Role, load_key, now, signing_request
from colonnade.federate.doors import Door
from colonnade.federate.federation import Federation
from colonnade.federate.identities import check_identity
from colonnade.federate.invitations import Invitation, enrol

__all__ = ["EnrolmentService", "request_enrolment"]

_PATH = "/colonnade.membership.v1/Enrol"


@dataclass(frozen=True, kw_only=True)
class EnrolRequest:
    """A token and a request for a certificate (PEM)."""

    version: int
    token: str = field(repr=False)
    request: str


class EnrolmentService:
    """The hub's door for those who join; at the settings' address unless another is given."""

    def __init__(self, directory: Path, *, address: str | None = None, now: Now = now) -> None:
        federation = Federation(directory, now=now)

        def certify(request: EnrolRequest, _: grpc.ServicerContext) -> bytes:
            return enrol(federation, request.token, request.request.encode())

        self._door = Door(
            federation,
            address or federation.settings.listen_enrolment,
            handler(_PATH, EnrolRequest, certify),
            mutual=False,
        )

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._door.address

    def start(self) -> int:
        """Listen; returns the port."""
        return self._door.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Take no more calls, and finish those in hand."""
        self._door.stop(grace_seconds)


def request_enrolment(invitation: Invitation, key: bytes, *, now: Now = now) -> Identity:
    """Ask the hub for a certificate for this key (PEM), which stays here."""
    request = EnrolRequest(
        version=VERSION,
        token=invitation.token,
        request=signing_request(load_key(key, "own key"), invitation.party).decode(),
    )
    authority = invitation.authority.encode()
    credentials = grpc.ssl_channel_credentials(root_certificates=authority)
    certificate = ask(invitation.enrolment, credentials, _PATH, request)
    identity = Identity(
        name=invitation.party, authority=authority, certificate=certificate, key=key
    )
    check_identity(identity, Role.PARTY, now(), "the certificate that the hub sent")
    return identity
