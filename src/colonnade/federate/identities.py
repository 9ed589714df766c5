"""An identity on its owner's disk: written, read, and checked before anything is dialled.

One file holds the key, the certificate and the authority's certificate, so that a renewal replaces
them together or not at all. Only its owner may read it.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from colonnade.core.errors import StorageError
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.certificates import (
    Reason,
    Role,
    check_issued,
    check_time,
    load_certificate,
    load_key,
    name_of,
    refused,
)
from colonnade.files import write_atomically

__all__ = ["IDENTITY", "check_identity", "is_renewal_due", "load_identity", "save_identity"]

IDENTITY = "identity.pem"

_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\n.*?-----END \1-----\n", re.S)
_KINDS = [b"PRIVATE KEY", b"CERTIFICATE", b"CERTIFICATE"]


def save_identity(directory: Path, identity: Identity) -> None:
    """Write an identity, for its owner only."""
    content = identity.key + identity.certificate + identity.authority
    write_atomically(directory / IDENTITY, content, owner_only=True)


def load_identity(directory: Path) -> Identity:
    """Read an identity; a file that others on the machine may read is refused."""
    path = directory / IDENTITY
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise StorageError(
            f"{path}: no such file; join a federation first (colonnade party join)"
        ) from error
    except OSError as error:
        raise StorageError(f"{path}: can't be read: {error.strerror}") from error
    if mode & 0o077:
        raise StorageError(f"{path}: others may read this key; run: chmod 600 {path}")
    blocks = list(_BLOCK.finditer(content))
    if [block[1] for block in blocks] != _KINDS:
        raise refused(
            Reason.UNREADABLE,
            f"{path}: not an identity: it must hold a private key and two certificates",
        )
    key, certificate, authority = (block[0] for block in blocks)
    name = name_of(load_certificate(certificate, str(path)))
    return Identity(name=name, authority=authority, certificate=certificate, key=key)


def check_identity(
    identity: Identity, role: Role, moment: datetime.datetime, where: str = "own identity"
) -> None:
    """Refuse an identity of one's own that the other side would not accept."""
    certificate = load_certificate(identity.certificate, where)
    authority = load_certificate(identity.authority, f"{where}, authority")
    if certificate.public_key() != load_key(identity.key, where).public_key():
        raise refused(
            Reason.MISMATCH, f"{where}: the key is not that of the certificate; join again"
        )
    if name_of(certificate) != identity.name:
        raise refused(
            Reason.MISMATCH,
            f"{where}: the certificate is that of '{name_of(certificate)}', not of "
            f"'{identity.name}'; join again",
        )
    check_issued(certificate, authority, role, where)
    check_time(certificate, moment, where)
    check_time(authority, moment, f"{where}, authority")


def is_renewal_due(certificate: bytes, moment: datetime.datetime) -> bool:
    """Whether a third or less of a certificate's life is left."""
    own = load_certificate(certificate, "certificate")
    life = own.not_valid_after_utc - own.not_valid_before_utc
    return own.not_valid_after_utc - moment <= life / 3
