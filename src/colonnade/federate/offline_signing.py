"""Signing away from the hub: requests go out in a file, certificates come back in a file.

A hub whose directory has no authority.key.pem signs nothing. It keeps what it is asked for in
FEDERATION/requests: enrolments, renewals, and its own next certificate. ``export_requests`` puts
them into one file; ``sign_requests`` runs where the key is and makes another; ``import_signed``
brings that back. The party asks again with the same key and gets its certificate. Neither file
holds a secret: whoever changes one makes certificates that don't fit, which are refused.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, RunError, StorageError
from colonnade.federate.authority import Authority
from colonnade.federate.certificates import (
    Now,
    Role,
    certificate_pem,
    check_issued,
    check_name,
    key_print,
    load_certificate,
    load_request,
    name_of,
    now,
)
from colonnade.files import write_atomically

__all__ = [
    "AwaitsSigning",
    "CertificateRequest",
    "PendingRequests",
    "Requests",
    "Signed",
    "SignedRequest",
    "print_of",
    "read_authority",
    "read_requests",
    "read_signed",
    "sign_requests",
    "write_file",
]

T = TypeVar("T")

_PLACE = "requests"
_MOST_BYTES = 16 * 1024 * 1024
# A stranger can't fill the disk: an invitation makes one request.
_MOST_PENDING = 1000


class AwaitsSigning(RunError):
    """A certificate that the label holder signs by hand, away from the hub."""


@dataclass(frozen=True, kw_only=True)
class CertificateRequest:
    """One certificate that is asked for.

    Attributes:
        name: Whom it is for.
        role: "party" or "hub".
        request: The request (PEM), signed with the new key.
        days: How long it lasts.
        hosts: At which parties reach a hub.
    """

    name: str
    role: Literal["party", "hub"] = "party"
    request: str
    days: int
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name, "name")

    @property
    def key(self) -> ec.EllipticCurvePublicKey:
        """The key that it is for."""
        return load_request(self.request.encode())


@dataclass(frozen=True, kw_only=True)
class Requests:
    """A file of requests; ``authority`` is the hash of the authority's certificate."""

    version: int = 1
    federation: str
    authority: str
    requests: tuple[CertificateRequest, ...]


@dataclass(frozen=True, kw_only=True)
class SignedRequest:
    """A request and its certificate (PEM)."""

    request: CertificateRequest
    certificate: str


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A file of certificates."""

    version: int = 1
    authority: str
    signed: tuple[SignedRequest, ...] = field(default_factory=tuple)


class PendingRequests:
    """The requests that wait at a hub without the authority's key."""

    def __init__(self, directory: Path) -> None:
        self._place = directory / _PLACE

    def certificate_for(self, request: CertificateRequest) -> x509.Certificate:
        """The certificate that was signed for this key; if there is none yet, keep the request.

        Raises AwaitsSigning in that case.
        """
        path = self._path(request)
        signed = path.with_suffix(".pem")
        if signed.exists():
            return load_certificate(signed.read_bytes(), str(signed))
        if not path.exists():
            if sum(1 for _ in self._waiting()) >= _MOST_PENDING:
                raise RunError("too many requests wait for the label holder; try again later")
            content = json.dumps(dump(request), indent=2) + "\n"
            write_atomically(path, content.encode(), owner_only=True)
        raise AwaitsSigning(
            f"the label holder signs the certificate of '{request.name}' away from the hub; it has "
            "the request: run the same command again when it has signed"
        )

    def waiting(self) -> tuple[CertificateRequest, ...]:
        """Everything that is not signed yet."""
        return tuple(_read(CertificateRequest, path, "a request") for path in self._waiting())

    def _waiting(self) -> list[Path]:
        found = sorted(self._place.glob("*.json")) if self._place.exists() else []
        return [path for path in found if not path.with_suffix(".pem").exists()]

    def check(self, item: SignedRequest, authority: x509.Certificate) -> x509.Certificate:
        """Refuse a certificate that nobody asked for, or of another authority, key or name."""
        path = self._path(item.request)
        if not path.exists() or _read(CertificateRequest, path, "a request") != item.request:
            raise ConfigError(f"'{item.request.name}': nobody has asked this hub for it")
        where = f"the certificate of '{item.request.name}'"
        certificate = load_certificate(item.certificate.encode(), where)
        check_issued(certificate, authority, Role(item.request.role), where)
        asked = (item.request.name, item.request.key)
        if (name_of(certificate), certificate.public_key()) != asked:
            raise ConfigError(f"{where}: it is for another key or name than was asked for")
        return certificate

    def take(self, item: SignedRequest, authority: x509.Certificate) -> None:
        """Keep a signed certificate for whoever asked."""
        certificate = self.check(item, authority)
        path = self._path(item.request).with_suffix(".pem")
        write_atomically(path, certificate_pem(certificate))

    def drop(self, request: CertificateRequest) -> None:
        """Forget a request that was answered."""
        for path in (self._path(request), self._path(request).with_suffix(".pem")):
            path.unlink(missing_ok=True)

    def _path(self, request: CertificateRequest) -> Path:
        return self._place / f"{request.role}-{request.name}-{key_print(request.key)[:32]}.json"


def sign_requests(requests: Requests, authority: Authority, *, now: Now = now) -> Signed:
    """Sign everything in a file; runs where the authority's key is."""
    own = print_of(authority.certificate)
    if requests.authority != own:
        raise ConfigError("these requests are for another federation's authority")
    return Signed(
        authority=own,
        signed=tuple(
            SignedRequest(
                request=item,
                certificate=certificate_pem(
                    authority.issue(
                        item.name,
                        item.key,
                        role=Role(item.role),
                        moment=now(),
                        days=item.days,
                        hosts=item.hosts,
                    )
                ).decode(),
            )
            for item in requests.requests
        ),
    )


def print_of(certificate: bytes) -> str:
    """The hash of an authority's certificate, which names it."""
    return hashlib.sha256(certificate).hexdigest()


def read_authority(directory: Path) -> Authority:
    """The authority from the directory in which its key is kept."""
    try:
        certificate = (directory / "authority.pem").read_bytes()
        key = (directory / "authority.key.pem").read_bytes()
    except OSError as error:
        raise StorageError(
            f"{error.filename}: can't be read: {error.strerror}; --authority names a directory "
            "with authority.pem and authority.key.pem"
        ) from error
    return Authority(certificate=certificate, key=key)


def write_file(path: Path, content: Requests | Signed) -> None:
    """Write a file of requests or of certificates."""
    write_atomically(path, (json.dumps(dump(content), indent=2) + "\n").encode())


def read_requests(path: Path) -> Requests:
    """Read a file of requests."""
    return _read(Requests, path, "a file of requests")


def read_signed(path: Path) -> Signed:
    """Read a file of certificates."""
    return _read(Signed, path, "a file of certificates")


def _read(kind: type[T], path: Path, what: str) -> T:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: not {what}: too large")
        content: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not {what}: not JSON") from error
    try:
        return parse(kind, content)
    except ConfigError as error:
        raise ConfigError(f"{path}: not {what}: {error}") from error
