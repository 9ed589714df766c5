"""A small certificate authority for tests: identities that are right, foreign, expired."""

from __future__ import annotations

import datetime
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from colonnade.fabrics.grpc.identity import HUB_NAME, Identity

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs a certificate for whoever is named."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        now = datetime.datetime.now(datetime.UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def hub(self) -> Identity:
        return self.identity("hub", dns=HUB_NAME)

    def identity(self, name: str, *, dns: str | None = None, expired: bool = False) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now - _DAY / 2 if expired else now + 7 * _DAY)
        )
        if dns is not None:
            names = x509.SubjectAlternativeName([x509.DNSName(dns)])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Identity(
            name=name,
            authority=_pem(self._certificate),
            certificate=_pem(certificate),
            key=key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


def admit(certificate: bytes) -> str:
    """The common name of a certificate."""
    subject = x509.load_pem_x509_certificate(certificate).subject
    return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


@cache
def authority() -> Authority:
    """One for all tests of a process."""
    return Authority()


@cache
def identity_of(name: str) -> Identity:
    """A party's identity, made once per process."""
    return authority().identity(name)


@cache
def hub_identity() -> Identity:
    """The hub's identity, made once per process."""
    return authority().hub()


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
