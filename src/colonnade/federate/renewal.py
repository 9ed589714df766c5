"""Renewal over the network: both sides of it.

A member shows its certificate (mutual TLS) and asks for another, for a new key. The old one is good
until the new one is used for the first time, so that a party that crashes in between is not locked
out; from then on the old one is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from colonnade.core.errors import IdentityRefused, ProtocolError
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.admission import Admission
from colonnade.federate.calls import VERSION, ask, handler
from colonnade.federate.certificates import (
    Now,
    Reason,
    Role,
    certificate_pem,
    key_pem,
    load_certificate,
    load_request,
    new_key,
    now,
    serial_of,
    signing_request,
)
from colonnade.federate.doors import Door
from colonnade.federate.federation import Federation
from colonnade.federate.identities import check_identity

__all__ = ["RenewalService", "issue_renewal", "renew", "renewal_handler"]

_PATH = "/colonnade.membership.v1/Renew"
_LOG = logging.getLogger("colonnade.membership")


@dataclass(frozen=True, kw_only=True)
class RenewRequest:
    """A request for a certificate (PEM), signed with the new key."""

    version: int
    request: str


def renewal_handler(directory: Path, *, now: Now = now) -> grpc.GenericRpcHandler:
    """Answers renewals; to be added to a hub that listens with mutual TLS."""
    federation, admission = Federation(directory, now=now), Admission(directory, now=now)

    def certify(request: RenewRequest, context: grpc.ServicerContext) -> bytes:
        shown = context.auth_context().get("x509_pem_cert")
        if not shown:
            raise IdentityRefused(
                "a renewal needs a link with the certificate that is to be renewed",
                reason=Reason.FOREIGN,
            )
        return issue_renewal(federation, admission, shown[0], request.request.encode())

    return handler(_PATH, RenewRequest, certify)


def issue_renewal(
    federation: Federation, admission: Admission, shown: bytes, request: bytes
) -> bytes:
    """A certificate (PEM) for the key of the request, to follow the one that was shown."""
    name = admission(shown)
    old, key = load_certificate(shown, "the certificate that was shown"), load_request(request)
    if key == old.public_key():
        raise ProtocolError("a renewal needs a new key")
    with federation.register.changing() as register:
        member = register.members.get(name)
        # Something may have happened since the check above.
        if member is None or member.serial != serial_of(old):
            raise IdentityRefused(
                f"'{name}' has been revoked, or has enrolled again, a moment ago",
                reason=Reason.REVOKED if member is None else Reason.SUPERSEDED,
            )
        certificate = federation.authority().issue(
            name,
            key,
            role=Role.PARTY,
            moment=federation.now(),
            days=federation.settings.certificate_days,
        )
        register.members[name] = replace(
            member,
            successor=serial_of(certificate),
            successor_expires=certificate.not_valid_after_utc.isoformat(timespec="seconds"),
        )
    fields = {"party": name, "serial": serial_of(certificate)}
    _LOG.info("a certificate was renewed", extra={"fields": fields})
    return certificate_pem(certificate)


class RenewalService:
    """Renewals at the hub's own address, for the time when no hub listens there."""

    def __init__(self, directory: Path, *, address: str | None = None, now: Now = now) -> None:
        federation = Federation(directory, now=now)
        self._door = Door(
            federation,
            address or federation.settings.listen_address,
            renewal_handler(directory, now=now),
            mutual=True,
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


def renew(identity: Identity, address: str, *, now: Now = now) -> Identity:
    """A new key and a new certificate, by the authority of the old ones."""
    check_identity(identity, Role.PARTY, now())
    key = new_key()
    request = RenewRequest(version=VERSION, request=signing_request(key, identity.name).decode())
    credentials = grpc.ssl_channel_credentials(
        root_certificates=identity.authority,
        private_key=identity.key,
        certificate_chain=identity.certificate,
    )
    certificate = ask(address, credentials, _PATH, request)
    renewed = replace(identity, certificate=certificate, key=key_pem(key))
    check_identity(renewed, Role.PARTY, now(), "the certificate that the hub sent")
    return renewed
