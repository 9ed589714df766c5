"""A federation's own certificate authority: the label holder's, for this federation only.

It signs members' certificates and nothing else: its key usage is signing certificates, and its
path length is 0, so that no member can sign for another.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from colonnade.fabrics.grpc.identity import HUB_NAME
from colonnade.federate.certificates import (
    Reason,
    Role,
    certificate_pem,
    key_pem,
    load_certificate,
    load_key,
    new_key,
    refused,
)

__all__ = ["Authority"]

_LIFE = datetime.timedelta(days=3650)
# A new certificate is valid at a party whose clock is a little behind, too.
_SLACK = datetime.timedelta(minutes=5)
# In TLS 1.3 a member's key signs, and does nothing else.
_MAY_NOT = {
    "content_commitment": False,
    "key_encipherment": False,
    "data_encipherment": False,
    "key_agreement": False,
    "encipher_only": False,
    "decipher_only": False,
}


@dataclass(frozen=True, kw_only=True)
class Authority:
    """The authority's certificate, and the key that signs; both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    @classmethod
    def create(cls, label_holder: str, *, moment: datetime.datetime) -> Authority:
        """A new authority with a key of its own."""
        key = new_key()
        subject = _subject(f"federation of {label_holder}")
        builder = _begin(subject, subject, key.public_key(), moment, moment + _LIFE)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        usage = x509.KeyUsage(
            digital_signature=False, key_cert_sign=True, crl_sign=True, **_MAY_NOT
        )
        builder = builder.add_extension(usage, True)
        builder = builder.add_extension(_identifier(key.public_key()), False)
        certificate = builder.sign(key, hashes.SHA256())
        return cls(certificate=certificate_pem(certificate), key=key_pem(key))

    def issue(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        *,
        role: Role,
        moment: datetime.datetime,
        days: int,
        hosts: Sequence[str] = (),
    ) -> x509.Certificate:
        """A member's certificate; ``hosts`` are the hosts at which parties reach a hub."""
        own = load_certificate(self.certificate, "the authority's certificate")
        if moment >= own.not_valid_after_utc:
            raise refused(
                Reason.EXPIRED,
                "the federation's authority signs nothing any more: it was valid from "
                f"{own.not_valid_before_utc:%Y-%m-%d} to {own.not_valid_after_utc:%Y-%m-%d}; check "
                "this machine's clock, or make a new federation and invite every party again",
            )
        ends = min(moment + datetime.timedelta(days=days), own.not_valid_after_utc)
        builder = _begin(_subject(name), own.subject, key, moment, ends)
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        if role is Role.HUB:
            # Parties check this name, whatever the address at which they reach the hub.
            names.append(x509.DNSName(HUB_NAME))
        names += [_general_name(host) for host in hosts if host != name]
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=False, crl_sign=False, **_MAY_NOT
        )
        signer = own.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        for extension, is_critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (usage, True),
            (x509.ExtendedKeyUsage([role.usage]), False),
            (x509.SubjectAlternativeName(names), False),
            (_identifier(key), False),
            (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), False),
        ):
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(load_key(self.key, "the authority's key"), hashes.SHA256())


def _begin(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    moment: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - _SLACK)
        .not_valid_after(ends)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Colonnade"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _identifier(key: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
