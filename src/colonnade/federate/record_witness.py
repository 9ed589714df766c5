"""Parties as witnesses of the hub's record: a record that went back is recognised.

At every connection, and every hour, an agent asks the hub for its record's length and last hash,
signed by the hub, and keeps that (``hub_record.json``). It shows what it kept before. If the hub's
record does not have that entry, an older copy of the federation's directory was put back, or the
record was rewritten: revocations may be missing. The hub then admits nobody until the label holder
has taken note of it. A party can't invent such a statement: the hub believes its own signature
only.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from colonnade.core.config import dump, parse
from colonnade.core.errors import ConfigError, ProtocolError, RunError, StorageError
from colonnade.fabrics.grpc.identity import Identity
from colonnade.federate.admission import Admission
from colonnade.federate.certificates import (
    Now,
    Role,
    check_issued,
    load_certificate,
    load_key,
    now,
)
from colonnade.federate.federation_directory import FederationDirectory
from colonnade.federate.json_calls import VERSION, call_handler, request_answer
from colonnade.federate.party_home import own_identity, read_party
from colonnade.files import write_atomically
from colonnade.run.storage import read_json

__all__ = ["SignedHead", "check_head", "exchange_witness", "sign_head", "witness_handler"]

_PATH = "/colonnade.membership.v1/Witness"
_FILE = "hub_record.json"
_LOG = logging.getLogger("colonnade.membership")


@dataclass(frozen=True, kw_only=True)
class SignedHead:
    """The length of a hub's record and its last hash, as the hub has signed them.

    ``certificate`` (PEM) is the one that the hub had then; ``signature`` is in hexadecimal digits.
    """

    entries: int
    head: str
    certificate: str
    signature: str


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """A party's question, with what it has seen before."""

    version: int
    seen: SignedHead | None = None


@dataclass(frozen=True, kw_only=True)
class _Told:
    """The hub's answer; ``is_behind`` if it does not have what the party has seen."""

    version: int
    head: SignedHead
    is_behind: bool


def sign_head(identity: Identity, entries: int, head: str) -> SignedHead:
    """Sign a record's length and last hash with the hub's own key."""
    key = load_key(identity.key, "the hub's key")
    signature = key.sign(_content(entries, head), ec.ECDSA(SHA256()))
    return SignedHead(
        entries=entries,
        head=head,
        certificate=identity.certificate.decode(),
        signature=signature.hex(),
    )


def check_head(authority: bytes, shown: SignedHead) -> None:
    """Refuse a statement that no hub of this authority has signed.

    Its certificate may have expired since: the statement was made before.

    Raises:
        ProtocolError: The signature is not the hub's.
        IdentityRefused: The certificate is not a hub's of this authority.
    """
    certificate = load_certificate(shown.certificate.encode(), "the record's certificate")
    issuer = load_certificate(authority, "the authority's certificate")
    check_issued(certificate, issuer, Role.HUB, "the record's certificate")
    key = certificate.public_key()
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError
        signature = bytes.fromhex(shown.signature)
        key.verify(signature, _content(shown.entries, shown.head), ec.ECDSA(SHA256()))
    except (InvalidSignature, ValueError) as error:
        raise ProtocolError("the record's signature is not the hub's") from error


def _content(entries: int, head: str) -> bytes:
    return f"colonnade hub record\n{entries}\n{head}\n".encode()


def witness_handler(directory: Path, *, now: Now = now) -> grpc.GenericRpcHandler:
    """The handler by which a hub tells members its record's head, and hears what they have seen."""
    federation, admission = FederationDirectory(directory, now=now), Admission(directory, now=now)
    record = federation.record

    def answer(shown: _Shown, context: grpc.ServicerContext) -> _Told:
        pem = context.auth_context().get("x509_pem_cert")
        if not pem:
            raise ProtocolError("a witness needs a link with its certificate")
        name = admission(pem[0])
        is_behind = False
        if shown.seen is not None:
            check_head(federation.authority_certificate, shown.seen)
            is_behind = not record.confirm(shown.seen.entries, shown.seen.head)
        if is_behind:
            fields = {"party": name, "seen": shown.seen.entries if shown.seen else 0}
            _LOG.error(
                "the record is an older copy, or was rewritten: nobody is admitted until "
                "'colonnade federation audit --acknowledge'",
                extra={"fields": fields},
            )
        entries, head = record.head()
        told = sign_head(federation.hub_identity(), entries, head)
        return _Told(version=VERSION, head=told, is_behind=is_behind)

    return call_handler(_PATH, _Shown, answer)


def exchange_witness(home: Path, *, now: Now = now) -> bool:
    """Show the hub what this party has seen of its record, and keep what the hub tells.

    Returns:
        Whether the hub's record goes on from what was seen. A hub that does not answer, or is of
        an earlier version, is asked another time: True.

    Raises:
        ProtocolError: The hub's answer is none, or not signed by it.
        IdentityRefused: The own identity is not good.
    """
    identity = own_identity(home, now=now)
    seen = _kept(home)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=identity.authority,
        private_key=identity.key,
        certificate_chain=identity.certificate,
    )
    question = _Shown(version=VERSION, seen=seen)
    try:
        told = request_answer(read_party(home).hub, credentials, _PATH, question, _Told)
    except RunError as error:
        _LOG.debug("the hub's record was not witnessed", extra={"fields": {"because": str(error)}})
        return True
    check_head(identity.authority, told.head)
    fields = {"seen": seen.entries if seen else 0, "told": told.head.entries}
    if told.is_behind:
        _LOG.error(
            "the hub's record is older than what was seen of it: an old copy was put back there",
            extra={"fields": fields},
        )
        return False
    if seen is not None and told.head.entries < seen.entries:
        _LOG.warning("the label holder took note of missing entries", extra={"fields": fields})
    content = json.dumps(dump(told.head), indent=2).encode()
    write_atomically(home / _FILE, content, owner_only=True)
    return True


def _kept(home: Path) -> SignedHead | None:
    path = home / _FILE
    if not path.exists():
        return None
    try:
        return parse(SignedHead, read_json(path))
    except ConfigError as error:
        raise StorageError(f"{path}: damaged: {error}") from error
