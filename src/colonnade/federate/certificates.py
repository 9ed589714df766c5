"""Keys, certificates and requests: reading, writing and checking them; reasons for refusals.

All keys are on the curve P-256, which every TLS library speaks. A party's name is its DNS name in
the certificate. Hubs and parties have certificates for different uses, so that neither can pass
for the other.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from enum import StrEnum
from typing import TypeGuard

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from colonnade.core.errors import ConfigError, IdentityRefused

__all__ = [
    "Now",
    "Reason",
    "Role",
    "certificate_pem",
    "check_issued",
    "check_name",
    "check_time",
    "key_pem",
    "key_print",
    "load_certificate",
    "load_key",
    "load_request",
    "name_of",
    "new_key",
    "now",
    "refused",
    "serial_of",
    "signing_request",
]

Now = Callable[[], datetime.datetime]

# The parser raises these at bytes that are no certificate, or one of a kind it does not know.
_UNUSABLE = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)
# A label of a DNS name, so that TLS can check it; also the name of a directory.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,58}[a-z0-9])?")


class Reason(StrEnum):
    """Why an identity or an invitation is refused."""

    UNREADABLE = "unreadable"
    FOREIGN = "not of this federation"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    MISMATCH = "mismatching"
    REVOKED = "revoked"
    SUPERSEDED = "superseded"
    UNKNOWN_NAME = "unknown name"
    UNKNOWN_INVITATION = "unknown invitation"
    USED_INVITATION = "invitation already used"
    EXPIRED_INVITATION = "invitation expired"
    WITHDRAWN_INVITATION = "invitation withdrawn"


class Role(StrEnum):
    """The use that a certificate is for."""

    HUB = "hub"
    PARTY = "party"

    @property
    def usage(self) -> x509.ObjectIdentifier:
        """The extended key usage that stands for it."""
        if self is Role.HUB:
            return ExtendedKeyUsageOID.SERVER_AUTH
        return ExtendedKeyUsageOID.CLIENT_AUTH


def now() -> datetime.datetime:
    """The time, by this machine's clock."""
    return datetime.datetime.now(datetime.UTC)


def check_name(name: str, where: str) -> str:
    """Refuse a name that can't stand in a certificate or name a directory."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: '{name[:70]}' can't be a name in a federation; use 1 to 60 lower-case "
            "letters, digits, '-' or '_', with a letter or digit at both ends"
        )
    return name


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as PEM; for its owner's own files only."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(pem: bytes, where: str) -> ec.EllipticCurvePrivateKey:
    """A private key from PEM."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except _UNUSABLE as error:
        raise refused(Reason.UNREADABLE, f"{where}: holds no private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _is_p256(key.public_key()):
        raise refused(Reason.UNREADABLE, f"{where}: not a key on the curve P-256")
    return key


def key_print(key: ec.EllipticCurvePublicKey) -> str:
    """A public key's fingerprint."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return digest.finalize().hex()


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def load_certificate(pem: bytes, where: str) -> x509.Certificate:
    """A certificate from PEM; its key must be on P-256."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
    except _UNUSABLE as error:
        raise refused(Reason.UNREADABLE, f"{where}: holds no certificate in PEM") from error
    if not _is_p256(key):
        raise refused(Reason.UNREADABLE, f"{where}: the certificate's key is not on P-256")
    return certificate


def signing_request(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    """Ask for a certificate: the public key, signed with the private one that stays at home."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def load_request(pem: bytes) -> ec.EllipticCurvePublicKey:
    """The public key of a request whose sender has the private one.

    Nothing else in a request counts: the federation decides on names and uses.
    """
    try:
        request = x509.load_pem_x509_csr(pem)
        is_signed = request.is_signature_valid
        key = request.public_key()
    except _UNUSABLE as error:
        raise refused(Reason.UNREADABLE, "the request for a certificate is not PEM") from error
    if not _is_p256(key):
        raise refused(Reason.UNREADABLE, "the request's key is not on the curve P-256")
    if not is_signed:
        raise refused(Reason.UNREADABLE, "the request is not signed with its own key")
    return key


def serial_of(certificate: x509.Certificate) -> str:
    """A certificate's serial number as the register writes it."""
    return f"{certificate.serial_number:x}"


def name_of(certificate: x509.Certificate) -> str:
    """The name that a certificate is for: its first DNS name, or nothing."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        found = names.value.get_values_for_type(x509.DNSName)
    except _UNUSABLE:
        return ""
    return found[0] if found else ""


def check_issued(
    certificate: x509.Certificate, authority: x509.Certificate, role: Role, where: str
) -> None:
    """Refuse a certificate that this authority has not issued for this use."""
    try:
        certificate.verify_directly_issued_by(authority)
    except _UNUSABLE as error:
        raise refused(
            Reason.FOREIGN, f"{where}: not issued by this federation's authority"
        ) from error
    try:
        extensions = certificate.extensions
        uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        is_authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except _UNUSABLE as error:
        raise refused(Reason.FOREIGN, f"{where}: lacks what a certificate here has") from error
    if is_authority or list(uses) != [role.usage]:
        raise refused(Reason.FOREIGN, f"{where}: not the certificate of a {role}")


def check_time(certificate: x509.Certificate, moment: datetime.datetime, where: str) -> None:
    """Refuse a certificate that is not valid yet or no longer."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if moment < begins:
        raise IdentityRefused(
            f"{where}: not valid before {begins:%Y-%m-%d %H:%M} UTC, and the clock here says "
            f"{moment:%Y-%m-%d %H:%M}; set the clock right",
            reason=Reason.NOT_YET_VALID,
            may_pass=True,
        )
    if moment > ends:
        raise refused(
            Reason.EXPIRED,
            f"{where}: expired on {ends:%Y-%m-%d %H:%M} UTC; ask the label holder for a new "
            "invitation, and join again",
        )


def _is_p256(key: object) -> TypeGuard[ec.EllipticCurvePublicKey]:
    return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == ec.SECP256R1.name


def refused(reason: Reason, message: str) -> IdentityRefused:
    """The error for an identity or an invitation that is refused."""
    return IdentityRefused(message, reason=reason)
