"""Renewal of a certificate over the network: the hub's side and the party's.

A member shows its certificate (mutual TLS) and asks for another one, for a new key. The old
certificate is good until the new one is used for the first time, so that a party that crashes in
between is not locked out. From then on the old one is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from colonnade.core.errors import ProtocolError
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.admission import Admission
from colonnade.federate.certificates import (
    Now,
    Reason,
    Role,
    certificate_pem,
    key_pem,
    load_certificate,
    load_key,
    load_request,
    new_key,
    now,
    refused,
    serial_of,
    signing_request,
)
from colonnade.federate.enrolment_listener import CertificateListener
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.identities import check_identity
from colonnade.federate.json_calls import VERSION, certificate_handler, request_certificate

__all__ = ["issue_renewal", "renew", "renewal_handler", "renewal_service"]

_PATH = "/colonnade.membership.v1/Renew"
_LOG = logging.getLogger("colonnade.membership")


@dataclass(frozen=True, kw_only=True)
class RenewRequest:
    """A request for a certificate (PEM), signed with the new key."""

    version: int
    request: str


def renewal_handler(directory: Path, *, now: Now = now) -> grpc.GenericRpcHandler:
    """The handler that answers renewals; a hub that listens with mutual TLS adds it."""
    federation, admission = FederationDirectory(directory, now=now), Admission(directory, now=now)

    def certify(request: RenewRequest, context: grpc.ServicerContext) -> bytes:
        shown = context.auth_context().get("x509_pem_cert")
        if not shown:
            raise refused(
                Reason.FOREIGN, "a renewal needs a link with the certificate that is to be renewed"
            )
        return issue_renewal(federation, admission, shown[0], request.request.encode())

    return certificate_handler(_PATH, RenewRequest, certify)


def issue_renewal(
    federation: FederationDirectory, admission: Admission, shown: bytes, request: bytes
) -> bytes:
    """Issue a certificate (PEM) for the request's key, as successor of the one that was shown."""
    name = admission(shown)
    old, key = load_certificate(shown, "the certificate that was shown"), load_request(request)
    if key == old.public_key():
        raise ProtocolError("a renewal needs a new key")
    with federation.register.changing() as register:
        member = register.members.get(name)
        # The register may have changed since the check above.
        if member is None or member.serial != serial_of(old):
            raise refused(
                Reason.REVOKED if member is None else Reason.SUPERSEDED,
                f"'{name}' has been revoked, or has enrolled again, a moment ago",
            )
        certificate = federation.issue_member(name, key, request)
        federation.record.note("renewed", party=name, serial=serial_of(certificate))
        register.members[name] = replace(
            member,
            successor=serial_of(certificate),
            successor_expires=certificate.not_valid_after_utc.isoformat(timespec="seconds"),
        )
    fields = {"party": name, "serial": serial_of(certificate)}
    _LOG.info("a certificate was renewed", extra={"fields": fields})
    return certificate_pem(certificate)


def renewal_service(
    directory: Path, *, address: str | None = None, now: Now = now
) -> CertificateListener:
    """A listener for renewals at the hub's own address, for the time when no hub listens there."""
    federation = FederationDirectory(directory, now=now)
    address = address or federation.settings.listen_address
    handler = renewal_handler(directory, now=now)
    return CertificateListener(federation, address, handler, mutual=True)


def renew(
    identity: Identity, address: str, *, own_key: bytes | None = None, now: Now = now
) -> Identity:
    """Ask the hub for a certificate for a new key; returns the identity that replaces the old.

    ``own_key`` (PEM) is the new key, where an earlier request with it may have been kept.
    """
    check_identity(identity, Role.PARTY, now())
    key = new_key() if own_key is None else load_key(own_key, "the new key")
    request = RenewRequest(version=VERSION, request=signing_request(key, identity.name).decode())
    credentials = grpc.ssl_channel_credentials(
        root_certificates=identity.authority,
        private_key=identity.key,
        certificate_chain=identity.certificate,
    )
    certificate = request_certificate(address, credentials, _PATH, request)
    renewed = replace(identity, certificate=certificate, key=key_pem(key))
    check_identity(renewed, Role.PARTY, now(), "the certificate that the hub sent")
    return renewed
