"""Enrolment over the network: the hub's side and the party's.

A party that enrols has no certificate yet. TLS shows the hub's certificate only, and the party
checks it against the authority that its invitation pins. A token admits the party, once. The
party makes its key at home and keeps it there; it sends a request that the key has signed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import grpc

from colonnade.core.errors import IdentityRefused
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.certificates import Now, Role, load_key, now, signing_request
from colonnade.federate.enrolment_listener import CertificateListener
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.identities import check_identity
from colonnade.federate.invitations import Invitation, enrol
from colonnade.federate.json_calls import VERSION, certificate_handler, request_certificate

__all__ = ["enrolment_service", "request_enrolment"]

_PATH = "/colonnade.membership.v1/Enrol"


@dataclass(frozen=True, kw_only=True)
class EnrolRequest:
    """A token and a request for a certificate (PEM)."""

    version: int
    token: str = field(repr=False)
    request: str


def enrolment_service(
    directory: Path, *, address: str | None = None, now: Now = now
) -> CertificateListener:
    """The hub's listener for parties that join; at the settings' address by default."""
    federation = FederationDirectory(directory, now=now)

    def certify(request: EnrolRequest, _: grpc.ServicerContext) -> bytes:
        try:
            return enrol(federation, request.token, request.request.encode())
        except IdentityRefused as error:
            federation.record.note_refusal(reason=error.reason, asked="enrolment")
            raise

    address = address or federation.settings.listen_enrolment
    handler = certificate_handler(_PATH, EnrolRequest, certify)
    return CertificateListener(federation, address, handler, mutual=False)


def request_enrolment(invitation: Invitation, key: bytes, *, now: Now = now) -> Identity:
    """Ask the hub for a certificate for this key (PEM), which stays here."""
    request = EnrolRequest(
        version=VERSION,
        token=invitation.token,
        request=signing_request(load_key(key, "own key"), invitation.party).decode(),
    )
    authority = invitation.authority.encode()
    credentials = grpc.ssl_channel_credentials(root_certificates=authority)
    certificate = request_certificate(invitation.enrolment, credentials, _PATH, request)
    identity = Identity(
        name=invitation.party, authority=authority, certificate=certificate, key=key
    )
    check_identity(identity, Role.PARTY, now(), "the certificate that the hub sent")
    return identity
